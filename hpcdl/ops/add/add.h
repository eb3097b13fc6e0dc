#pragma once
// y = a + b of equal shape and dtype (f32 or bf16): the residual connection.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Add {
  static constexpr std::string_view name = "add";
  static constexpr OpClass kClass = OpClass::elementwise;
  static constexpr unsigned kCasts = 0b11;
  static constexpr bool kInPlace = true;
  struct Args {};
  static Spec infer(const Spec& a, const Spec& b, const Args&) {
    require_float(name, a, "the first operand");
    require_spec(name, "the second operand", b, a);
    return a;
  }
  static Cost cost(const Spec& a, const Spec&, const Args&) { return {.operations = static_cast<double>(a.size())}; }
  static void forward(Stream& s, Tensor y, View a, View b, const Args&);
  static void backward(Stream& s, Grad da, Grad db, View dy, const Args&);
  using Backward = Operands<dIn<0>, dIn<1>, dOut<0>>;
};

namespace cpu {
template <class Isa> void add(Isa, Pool&, Tensor y, View a, View b);
template <class Isa> void add_backward(Isa, Pool&, Grad da, Grad db, View dy);
}  // namespace cpu
namespace cuda {
void add(Stream&, Tensor y, View a, View b);
void add_backward(Stream&, Grad da, Grad db, View dy);
}  // namespace cuda

inline void Add::forward(Stream& s, Tensor y, View a, View b, const Args&) {
  on(s, [&](auto isa, Pool& pool) { cpu::add(isa, pool, y, a, b); }, [&](auto& q) { cuda::add(q, y, a, b); });
}
inline void Add::backward(Stream& s, Grad da, Grad db, View dy, const Args&) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::add_backward(isa, pool, da, db, dy); },
      [&](auto& q) { cuda::add_backward(q, da, db, dy); });
}

template <Symbolic V> V add(const V& a, const V& b) { return record<Add>({}, a, b); }

}  // namespace hpcdl
