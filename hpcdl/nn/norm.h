#pragma once

#include "hpcdl/nn/param.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"

namespace hpcdl::nn {

/// The output of the norm with this weight, for layers that ranks share: each rank then contributes a summand of its
/// gradient.
inline Var entering(const Var& y, const Param& weight) {
  const auto* s = weight.shared_as(Place::entering);
  if (!s) return y;
  return s->scheme == Sharing::sequence ? gather_rows(y, weight.axis()) : enter(y, weight.axis());
}

struct LayerNorm {
  Param weight, bias;  // (width)
  float eps = 1e-5f;

  LayerNorm() = default;
  LayerNorm(std::int64_t width, float e) : eps(e) {
    weight.spec = bias.spec = {{width}, DType::f32};
    weight.init = Init::ones;
  }
  Var operator()(const Var& x) const {
    const auto scope = module_scope(x.graph(), weight);
    return entering(layer_norm(x, weight(x.graph()), bias(x.graph()), {.eps = eps}), weight);
  }
  void visit(auto&& f) { f("weight", weight), f("bias", bias); }
};

struct RmsNorm {
  Param weight;  // (width)
  float eps = 1e-5f;
  float weight_offset = 0;  // added to the weight: 1 in Gemma

  RmsNorm() = default;
  RmsNorm(std::int64_t width, float e, float offset = 0) : eps(e), weight_offset(offset) {
    weight.spec = {{width}, DType::f32};
    weight.init = offset == 0 ? Init::ones : Init::zeros;
  }
  Var operator()(const Var& x) const {
    const auto scope = module_scope(x.graph(), weight);
    return entering(rms_norm(x, weight(x.graph()), {.eps = eps, .weight_offset = weight_offset}), weight);
  }
  void visit(auto&& f) { f("weight", weight); }
};

}  // namespace hpcdl::nn
