#pragma once
// y = act(x W^T + bias) + residual: the affine layer, one kernel forward.
//
// x (..., K); W (N, K) as PyTorch stores it, or (K, N) with `conv1d` as GPT-2's Conv1D does; bias (N) and residual
// (..., N) may be absent; y (..., N). f32 or bf16 each; products are computed in the dtype of x (an f32 master weight
// is rounded to bf16 when a bf16 product reads it), sums are f32. y has the dtype of x unless `out` says otherwise.
// Gradients: dx = dz W, dW = dz^T x, dbias = column sums of dz, dresidual = dy, where dz = dy act'(z).
//
// There are two ops, because an activation keeps z = x W^T + bias for backward: Linear and ActivatedLinear. linear()
// selects one.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct LinearArgs {
  Activation activation = Activation::none;
  bool conv1d = false;
  DType out = DType::none;
  bool constant_weights = false;  // W is not written while programs run: a GPU may read it early
  bool addend = false;  // a summand of a sum over ranks: another rank adds bias and residual; gradients are unchanged
};

/// Checks operands; returns the spec of y.
inline Spec linear_spec(std::string_view op, const Spec& x, const Spec& w, const Spec& bias, const Spec& residual,
                        const LinearArgs& a) {
  require_float(op, x, "x"), require_float(op, w, "weight");
  require(w.shape.rank() == 2 && x[-1] == w[a.conv1d ? 0 : 1], op, "weight must be {} for x {}, got {}",
          a.conv1d ? fmt::format("({}, N)", x[-1]) : fmt::format("(N, {})", x[-1]), to_string(x), to_string(w));
  Spec y{x.shape, a.out == DType::none ? x.dtype : a.out};
  y.shape[-1] = w[a.conv1d ? 1 : 0];
  require_float(op, y, "output");
  if (bias) require_shape(op, "bias", require_float(op, bias, "bias"), {y[-1]});
  if (residual) require_spec(op, "residual", residual, y);
  return y;
}

/// A summand is computed without bias and residual.
inline Cost linear_cost(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, bool addend) {
  const auto rows = static_cast<double>(x.size()) / static_cast<double>(x[-1] > 0 ? x[-1] : 1);
  return {.operations = 2 * rows * static_cast<double>(w.size()),
          .reads = addend ? -static_cast<double>(bias.bytes() + residual.bytes()) : 0};
}

struct Linear {
  static constexpr std::string_view name = "linear";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts =
      0b1001;  // x and residual: W is rounded when a product reads it, and its gradient stays f32
  static constexpr int kPasses = 3, kSplits = 1;  // dresidual = dy; dW only
  using Args = LinearArgs;
  static Spec infer(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Args& a) {
    require(a.activation == Activation::none, name, "an activation needs the op ActivatedLinear: call linear()");
    return linear_spec(name, x, w, bias, residual, a);
  }
  static Cost cost(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Args& a) {
    return linear_cost(x, w, bias, residual, a.addend);
  }
  static void forward(Stream& s, Tensor y, View x, View w, View bias, View residual, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, dOut<0>>;
};

struct ActivatedLinear {
  static constexpr std::string_view name = "linear_act";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1001;
  static constexpr int kAux = 1, kPasses = 3;
  using Args = LinearArgs;
  /// y and z, the pre-activation.
  static std::array<Spec, 2> infer(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual,
                                   const Args& a) {
    require(!a.addend, name, "an addend of a sum over ranks has no activation: that of the sum is another");
    const Spec y = linear_spec(name, x, w, bias, residual, a);
    return {y, y};
  }
  static Cost cost(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Args&) {
    return linear_cost(x, w, bias, residual, false);
  }
  static void forward(Stream& s, Tensor y, Tensor z, View x, View w, View bias, View residual, const Args& a);
  /// dz
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual,
                                              const Args& a) {
    return {linear_spec(name, x, w, bias, residual, a)};
  }
  static void backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View z, View dy,
                       Tensor dz, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, Out<1>, dOut<0>, Scratch<0>>;
};

/// The operands of a backward pass; z and dz are absent without an activation. On a GPU, if `x_z` is given, the
/// argument of the activation `x_activation` that produced x, dx is the gradient of x_z.
struct LinearGradients {
  Grad dx, dw, dbias, dresidual;
  View x, w, z, dy;
  Tensor dz;
  View x_z = {};
  Activation x_activation = Activation::none;
};

namespace cpu {
template <class Isa>
void linear(Isa, Pool&, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a,
            const Numerics& numerics);
template <class Isa>
void linear_backward(Isa, Pool&, const LinearGradients& g, const LinearArgs& a, const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void linear(Stream&, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a);
void linear_backward(Stream&, const LinearGradients& g, const LinearArgs& a);
}  // namespace cuda

inline void Linear::forward(Stream& s, Tensor y, View x, View w, View bias, View residual, const Args& a) {
  if (a.addend) bias = residual = View();
  on(
      s, [&](auto isa, Pool& pool) { cpu::linear(isa, pool, y, Tensor(), x, w, bias, residual, a, s.numerics()); },
      [&](auto& q) { cuda::linear(q, y, Tensor(), x, w, bias, residual, a); });
}
inline void Linear::backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View dy,
                             const Args& a) {
  const LinearGradients g{
      .dx = dx, .dw = dw, .dbias = dbias, .dresidual = dresidual, .x = x, .w = w, .z = {}, .dy = dy, .dz = {}};
  on(
      s, [&](auto isa, Pool& pool) { cpu::linear_backward(isa, pool, g, a, s.numerics()); },
      [&](auto& q) { cuda::linear_backward(q, g, a); });
}
inline void ActivatedLinear::forward(Stream& s, Tensor y, Tensor z, View x, View w, View bias, View residual,
                                     const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::linear(isa, pool, y, z, x, w, bias, residual, a, s.numerics()); },
      [&](auto& q) { cuda::linear(q, y, z, x, w, bias, residual, a); });
}
inline void ActivatedLinear::backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View z,
                                      View dy, Tensor dz, const Args& a) {
  const LinearGradients g{
      .dx = dx, .dw = dw, .dbias = dbias, .dresidual = dresidual, .x = x, .w = w, .z = z, .dy = dy, .dz = dz};
  on(
      s, [&](auto isa, Pool& pool) { cpu::linear_backward(isa, pool, g, a, s.numerics()); },
      [&](auto& q) { cuda::linear_backward(q, g, a); });
}

/// bias and residual may be default (absent).
template <Symbolic V> V linear(const V& x, const V& w, const V& bias = {}, LinearArgs a = {}, const V& residual = {}) {
  if (a.activation == Activation::none) return record<Linear>(a, x, w, bias, residual);
  return record<ActivatedLinear>(a, x, w, bias, residual);
}

}  // namespace hpcdl
