#pragma once
// y = gelu(x + b), for cases where the bias cannot be part of a matrix product. x, y: (..., C), b: (C), one dtype, f32
// or bf16. Forms of gelu: see gelu.h.

#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct BiasGelu {
  static constexpr std::string_view name = "bias_gelu";
  static constexpr OpClass kClass = OpClass::elementwise;
  static constexpr unsigned kCasts = 0b11;
  static constexpr bool kInPlace = true;
  using Args = Gelu::Args;
  static Spec infer(const Spec& x, const Spec& b, const Args&) {
    require_float(name, x);
    require_spec(name, "the bias", b, {{x[-1]}, x.dtype});
    return x;
  }
  static Cost cost(const Spec& x, const Spec&, const Args&) {
    return {.operations = 13.0 * static_cast<double>(x.size())};
  }
  static void forward(Stream& s, Tensor y, View x, View b, const Args& a);
  /// The rows are summed in kParts shares: a fixed number, so that the number of threads does not change results.
  static constexpr std::int64_t kParts = 64;
  static std::array<Spec, 1> backward_scratch(const Spec&, const Spec& b, const Args&) {
    return {Spec{{kParts, b[0]}, DType::f32}};
  }
  /// dx = dy gelu'(x + b), db = the sum of dx over the rows.
  static void backward(Stream& s, Grad dx, Grad db, View x, View b, View dy, Tensor scratch, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, dOut<0>, Scratch<0>>;
};

namespace cpu {
template <class Isa> void bias_gelu(Isa, Pool&, Tensor y, View x, View b, const Gelu::Args& a);
template <class Isa>
void bias_gelu_backward(Isa, Pool&, Grad dx, Grad db, View x, View b, View dy, Tensor scratch, const Gelu::Args& a);
}  // namespace cpu
namespace cuda {
void bias_gelu(Stream&, Tensor y, View x, View b, const Gelu::Args& a);
void bias_gelu_backward(Stream&, Grad dx, Grad db, View x, View b, View dy, Tensor scratch, const Gelu::Args& a);
}  // namespace cuda

inline void BiasGelu::forward(Stream& s, Tensor y, View x, View b, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::bias_gelu(isa, pool, y, x, b, a); },
      [&](auto& q) { cuda::bias_gelu(q, y, x, b, a); });
}
inline void BiasGelu::backward(Stream& s, Grad dx, Grad db, View x, View b, View dy, Tensor scratch, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::bias_gelu_backward(isa, pool, dx, db, x, b, dy, scratch, a); },
      [&](auto& q) { cuda::bias_gelu_backward(q, dx, db, x, b, dy, scratch, a); });
}

template <Symbolic V> V bias_gelu(const V& x, const V& b, Gelu::Args a = {}) { return record<BiasGelu>(a, x, b); }

}  // namespace hpcdl
