#pragma once
// y = gelu(x). x, y: any shape, f32 or bf16. tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), expressed with
// exp as x / (1 + e^-2u); erf form: x Phi(x). Source: Hendrycks & Gimpel, "Gaussian error linear units", 2016.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Gelu {
  static constexpr std::string_view name = "gelu";
  static constexpr bool kInPlace = true;
  enum class Form : unsigned char { tanh, erf };
  struct Args {
    Form form = Form::tanh;
  };
  static Spec infer(const Spec& x, const Args&) { return require_float(name, x); }
  static Cost cost(const Spec& x, const Args&) { return {.operations = 12.0 * static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View x, View dy, const Args& a);
  using Backward = Operands<dIn<0>, In<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void gelu(Isa, Pool&, Tensor y, View x, const Gelu::Args& a);
template <class Isa> void gelu_backward(Isa, Pool&, Grad dx, View x, View dy, const Gelu::Args& a);
}  // namespace cpu
namespace cuda {
void gelu(Stream&, Tensor y, View x, const Gelu::Args& a);
void gelu_backward(Stream&, Grad dx, View x, View dy, const Gelu::Args& a);
}  // namespace cuda

inline void Gelu::forward(Stream& s, Tensor y, View x, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::gelu(isa, pool, y, x, a); }, [&](auto& q) { cuda::gelu(q, y, x, a); });
}
inline void Gelu::backward(Stream& s, Grad dx, View x, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::gelu_backward(isa, pool, dx, x, dy, a); },
      [&](auto& q) { cuda::gelu_backward(q, dx, x, dy, a); });
}

template <Symbolic V> V gelu(const V& x, Gelu::Args a = {}) { return record<Gelu>(a, x); }

}  // namespace hpcdl
