#pragma once
// y = max(x, 0). x, y: any shape, f32 or bf16. NaN stays NaN; the derivative at 0 is 0.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Relu {
  static constexpr std::string_view name = "relu";
  static constexpr bool kInPlace = true;
  struct Args {};
  static Spec infer(const Spec& x, const Args&) { return require_float(name, x); }
  static Cost cost(const Spec& x, const Args&) { return {.operations = static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor y, View x, const Args&);
  /// Reads y, not x: y > 0 exactly where x > 0.
  static void backward(Stream& s, Grad dx, View y, View dy, const Args&);
  using Backward = Operands<dIn<0>, Out<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void relu(Isa, Pool&, Tensor y, View x);
template <class Isa> void relu_backward(Isa, Pool&, Grad dx, View y, View dy);
}  // namespace cpu
namespace cuda {
void relu(Stream&, Tensor y, View x);
void relu_backward(Stream&, Grad dx, View y, View dy);
}  // namespace cuda

inline void Relu::forward(Stream& s, Tensor y, View x, const Args&) {
  on(s, [&](auto isa, Pool& pool) { cpu::relu(isa, pool, y, x); }, [&](auto& q) { cuda::relu(q, y, x); });
}
inline void Relu::backward(Stream& s, Grad dx, View y, View dy, const Args&) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::relu_backward(isa, pool, dx, y, dy); },
      [&](auto& q) { cuda::relu_backward(q, dx, y, dy); });
}

template <Symbolic V> V relu(const V& x) { return record<Relu>({}, x); }

}  // namespace hpcdl
