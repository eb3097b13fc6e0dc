#pragma once
// y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) over the last dim; with a residual, of h = x + residual.
// Gemma's weights are stored less one: their offset is 1.
//
// x, residual, h, y: (..., C), f32 or bf16. weight: (C), f32 or bf16 for any x. Kept for backward: 1 / sqrt(mean +
// eps), f32, one per row. Source: Zhang & Sennrich, "Root mean square layer normalization", 2019.

#include "hpcdl/op.h"
#include "hpcdl/ops/layer_norm/norm.h"

namespace hpcdl {

struct RmsNormArgs {
  float eps = 1e-5f;
  float weight_offset = 0;
};

struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 1;
  using Args = RmsNormArgs;
  /// y, rstd.
  static std::array<Spec, 2> infer(const Spec& x, const Spec& weight, const Args& a) {
    detail::require_norm(name, x, weight, {}, a.eps);
    return {x, detail::row_statistic(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Args&) {
    return {.operations = 5.0 * static_cast<double>(x.size())};
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Args&) {
    return {detail::norm_scratch(x)};
  }
  static void forward(Stream& s, Tensor y, Tensor rstd, View x, View weight, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dweight, View x, View weight, View rstd, View dy, Tensor partial,
                       const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, Out<1>, dOut<0>, Scratch<0>>;
};

struct AddRmsNorm {
  static constexpr std::string_view name = "add_rms_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  static constexpr int kAux = 1;
  using Args = RmsNormArgs;
  /// h, y, rstd.
  static std::array<Spec, 3> infer(const Spec& x, const Spec& residual, const Spec& weight, const Args& a) {
    detail::require_norm(name, x, weight, {}, a.eps);
    require_spec(name, "residual", residual, x);
    return {x, x, detail::row_statistic(x)};
  }
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {.operations = 6.0 * static_cast<double>(x.size())};
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Spec&, const Args&) {
    return {detail::norm_scratch(x)};
  }
  static void forward(Stream& s, Tensor h, Tensor y, Tensor rstd, View x, View residual, View weight, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, View weight, View h, View rstd, View dh,
                       View dy, Tensor partial, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<2>, Out<0>, Out<2>, dOut<0>, dOut<1>, Scratch<0>>;
};

namespace cpu {
template <class Isa> void rms_norm(Isa, Pool&, const NormForward&);
template <class Isa> void rms_norm_backward(Isa, Pool&, const NormBackward&);
}  // namespace cpu
namespace cuda {
void rms_norm(Stream&, const NormForward&);
void rms_norm_backward(Stream&, const NormBackward&);
}  // namespace cuda

template <Symbolic V> V rms_norm(const V& x, const V& weight, RmsNorm::Args a = {}) {
  return record<RmsNorm>(a, x, weight);
}
/// {h, y} with h = x + residual and y = rms_norm(h).
template <Symbolic V> auto add_rms_norm(const V& x, const V& residual, const V& weight, AddRmsNorm::Args a = {}) {
  return record<AddRmsNorm>(a, x, residual, weight);
}

}  // namespace hpcdl
