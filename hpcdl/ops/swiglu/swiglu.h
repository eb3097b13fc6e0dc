#pragma once
// y = silu(gate) * up, or gelu(gate) * up in its tanh form. gate, up, y: one shape, f32 or bf16. gate and up may be
// slices of one packed (..., 2C) tensor.
// Source: Shazeer, "GLU variants improve transformer", 2020.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Swiglu {
  static constexpr std::string_view name = "swiglu";
  static constexpr OpClass kClass = OpClass::elementwise;
  static constexpr unsigned kCasts = 0b11;
  static constexpr bool kInPlace = true;
  enum class Gate : std::uint8_t { silu, gelu_tanh };
  struct Args {
    Gate gate = Gate::silu;
  };
  static Spec infer(const Spec& gate, const Spec& up, const Args&) {
    require_float(name, gate, "gate");
    require_spec(name, "up", up, gate);
    return gate;
  }
  static Cost cost(const Spec& gate, const Spec&, const Args&) {
    return {.operations = 10.0 * static_cast<double>(gate.size())};
  }
  static void forward(Stream& s, Tensor y, View gate, View up, const Args& a);
  static void backward(Stream& s, Grad dgate, Grad dup, View gate, View up, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, dOut<0>>;
};

namespace cpu {
template <class Isa> void swiglu(Isa, Pool&, Tensor y, View gate, View up, Swiglu::Gate);
template <class Isa> void swiglu_backward(Isa, Pool&, Grad dgate, Grad dup, View gate, View up, View dy, Swiglu::Gate);
}  // namespace cpu
namespace cuda {
void swiglu(Stream&, Tensor y, View gate, View up, Swiglu::Gate);
void swiglu_backward(Stream&, Grad dgate, Grad dup, View gate, View up, View dy, Swiglu::Gate);
}  // namespace cuda

inline void Swiglu::forward(Stream& s, Tensor y, View gate, View up, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::swiglu(isa, pool, y, gate, up, a.gate); },
      [&](auto& q) { cuda::swiglu(q, y, gate, up, a.gate); });
}
inline void Swiglu::backward(Stream& s, Grad dgate, Grad dup, View gate, View up, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::swiglu_backward(isa, pool, dgate, dup, gate, up, dy, a.gate); },
      [&](auto& q) { cuda::swiglu_backward(q, dgate, dup, gate, up, dy, a.gate); });
}

template <Symbolic V> V swiglu(const V& gate, const V& up, Swiglu::Args a = {}) { return record<Swiglu>(a, gate, up); }

}  // namespace hpcdl
