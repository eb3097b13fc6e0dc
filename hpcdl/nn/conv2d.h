#pragma once

#include "hpcdl/nn/param.h"
#include "hpcdl/ops/conv2d/conv2d.h"

namespace hpcdl::nn {

/// A convolution with square kernels. x: (N, H, W, in), y: (N, OH, OW, out). Files hold the weight in torch's order,
/// (out, in, K, K).
struct Conv2d {
  Param weight;  // (out, K, K, in)
  Param bias;    // (out)
  hpcdl::Conv2d::Args args;

  Conv2d() = default;
  Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, bool with_bias, hpcdl::Conv2d::Args a) : args(a) {
    weight.spec = {{out, kernel, kernel, in}, DType::f32};
    weight.channels_last = weight.spec.shape;
    weight.decay = weight.multiplied = true;
    if (with_bias) bias.spec = {{out}, DType::f32};
  }
  std::int64_t fan_in() const { return weight.spec[1] * weight.spec[2] * weight.spec[3]; }
  std::int64_t fan_out() const { return weight.spec[0] * weight.spec[1] * weight.spec[2]; }

  Var operator()(const Var& x) const {
    Graph& g = x.graph();
    const auto scope = module_scope(g, weight);
    return conv2d(x, weight.rounded(g, x.dtype()), bias(g), args);
  }
  void visit(auto&& f) {
    f("weight", weight);
    if (bias.spec) f("bias", bias);
  }
};

}  // namespace hpcdl::nn
