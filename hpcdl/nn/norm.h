#pragma once

#include "hpcdl/nn/param.h"
#include "hpcdl/nn/split.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"

namespace hpcdl::nn {

struct LayerNorm {
  Param weight, bias;  // (width)
  float eps = 1e-5f;
  const Split* split = nullptr;  // before layers that are spread over several ranks

  LayerNorm() = default;
  LayerNorm(std::int64_t width, float e) : eps(e) {
    weight.spec = bias.spec = {{width}, DType::f32};
    weight.init = Init::ones;
  }
  Var operator()(const Var& x) const {
    if (split) return split->norm(*this, x);
    const auto scope = module_scope(x.graph(), weight);
    return layer_norm(x, weight(x.graph()), bias(x.graph()), {.eps = eps});
  }
  void visit(auto&& f) { f("weight", weight), f("bias", bias); }
};

struct RmsNorm {
  Param weight;  // (width)
  float eps = 1e-5f;
  const Split* split = nullptr;

  RmsNorm() = default;
  RmsNorm(std::int64_t width, float e) : eps(e) {
    weight.spec = {{width}, DType::f32};
    weight.init = Init::ones;
  }
  Var operator()(const Var& x) const {
    if (split) return split->norm(*this, x);
    const auto scope = module_scope(x.graph(), weight);
    return rms_norm(x, weight(x.graph()), {.eps = eps});
  }
  void visit(auto&& f) { f("weight", weight); }
};

}  // namespace hpcdl::nn
