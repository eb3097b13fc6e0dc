#pragma once
// y = factor * x; with a cap c, y = c tanh(factor * x / c). x, y: any shape, f32, bf16 or f16.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Scale {
  static constexpr std::string_view name = "scale";
  static constexpr bool kInPlace = true;
  struct Args {
    float factor = 1;
    float cap = 0;  // 0: none
  };
  static Spec infer(const Spec& x, const Args& a) {
    require(a.cap >= 0, name, "a cap must be positive, or 0 for none, got {}", a.cap);
    return require_float(name, x);
  }
  static Cost cost(const Spec& x, const Args& a) {
    return {.operations = (a.cap > 0 ? 12.0 : 1.0) * static_cast<double>(x.size())};
  }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View y, View dy, const Args& a);
  using Backward = Operands<dIn<0>, Out<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void scale(Isa, Pool&, Tensor y, View x, const Scale::Args& a);
template <class Isa> void scale_backward(Isa, Pool&, Grad dx, View y, View dy, const Scale::Args& a);
}  // namespace cpu
namespace cuda {
void scale(Stream&, Tensor y, View x, const Scale::Args& a);
void scale_backward(Stream&, Grad dx, View y, View dy, const Scale::Args& a);
}  // namespace cuda

inline void Scale::forward(Stream& s, Tensor y, View x, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::scale(isa, pool, y, x, a); }, [&](auto& q) { cuda::scale(q, y, x, a); });
}
inline void Scale::backward(Stream& s, Grad dx, View y, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::scale_backward(isa, pool, dx, y, dy, a); },
      [&](auto& q) { cuda::scale_backward(q, dx, y, dy, a); });
}

template <Symbolic V> V scale(const V& x, Scale::Args a) { return record<Scale>(a, x); }

}  // namespace hpcdl
