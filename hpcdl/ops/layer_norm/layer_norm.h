#pragma once
// y = (x - mean) / sqrt(var + eps) * gamma + beta over the last dim; with a residual, of h = x + residual.
//
// x, residual, h, y: (..., C), f32 or bf16. gamma, beta: (C), f32 or bf16 for any x (f32 master weights); beta may be
// absent. var is the mean of squared deviations (no Bessel correction), in two passes. Kept for backward: mean and 1 /
// sqrt(var + eps), f32, one per row. Parameter gradients are summed by chunks of rows that do not depend on the number
// of threads. Source: Ba, Kiros, Hinton, "Layer normalization", 2016.

#include "hpcdl/op.h"
#include "hpcdl/ops/layer_norm/norm.h"

namespace hpcdl {

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 2;
  using Args = detail::NormArgs;
  /// y, mean, rstd.
  static std::array<Spec, 3> infer(const Spec& x, const Spec& gamma, const Spec& beta, const Args& a) {
    detail::require_norm(name, x, gamma, beta, a.eps);
    return {x, detail::row_statistic(x), detail::row_statistic(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {.operations = 8.0 * static_cast<double>(x.size())};
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {detail::norm_scratch(x)};
  }
  static void forward(Stream& s, Tensor y, Tensor mean, Tensor rstd, View x, View gamma, View beta, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dgamma, Grad dbeta, View x, View gamma, View mean, View rstd, View dy,
                       Tensor partial, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, Out<1>, Out<2>, dOut<0>, Scratch<0>>;
};

struct AddLayerNorm {
  static constexpr std::string_view name = "add_layer_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  static constexpr int kAux = 2;
  using Args = detail::NormArgs;
  /// h, y, mean, rstd.
  static std::array<Spec, 4> infer(const Spec& x, const Spec& residual, const Spec& gamma, const Spec& beta,
                                   const Args& a) {
    detail::require_norm(name, x, gamma, beta, a.eps);
    require_spec(name, "residual", residual, x);
    return {x, x, detail::row_statistic(x), detail::row_statistic(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
    return {.operations = 9.0 * static_cast<double>(x.size())};
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
    return {detail::norm_scratch(x)};
  }
  static void forward(Stream& s, Tensor h, Tensor y, Tensor mean, Tensor rstd, View x, View residual, View gamma,
                      View beta, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dresidual, Grad dgamma, Grad dbeta, View gamma, View h, View mean,
                       View rstd, View dh, View dy, Tensor partial, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<2>, Out<0>, Out<2>, Out<3>, dOut<0>, dOut<1>, Scratch<0>>;
};

namespace cpu {
template <class Isa> void layer_norm(Isa, Pool&, const NormForward&);
template <class Isa> void layer_norm_backward(Isa, Pool&, const NormBackward&);
}  // namespace cpu
namespace cuda {
void layer_norm(Stream&, const NormForward&);
void layer_norm_backward(Stream&, const NormBackward&);
}  // namespace cuda

template <Symbolic V> V layer_norm(const V& x, const V& gamma, const V& beta, LayerNorm::Args a = {}) {
  return record<LayerNorm>(a, x, gamma, beta);
}
/// {h, y} with h = x + residual and y = layer_norm(h).
template <Symbolic V>
auto add_layer_norm(const V& x, const V& residual, const V& gamma, const V& beta, AddLayerNorm::Args a = {}) {
  return record<AddLayerNorm>(a, x, residual, gamma, beta);
}

}  // namespace hpcdl
