#include "hpcdl/nn/mx4.h"

#include "hpcdl/core/error.h"

namespace hpcdl::nn {
namespace {

void require_groups(const Param& weight, std::int64_t tokens) {
  const auto& w = weight.spec.shape;
  if (w[0] % kMxBlock != 0 || w[1] % kMxBlock != 0)
    fail_usage("mxfp4",
               "{} is {} x {}: products of MXFP4 need multiples of {}; choose other sizes, or train.dtype = \"bf16\"",
               weight.name, w[0], w[1], kMxBlock);
  if (tokens % kMxBlock != 0)
    fail_usage("mxfp4",
               "{} multiplies {} tokens: products of MXFP4 need multiples of {}; choose another train.batch or "
               "train.length, or train.dtype = \"bf16\"",
               weight.name, tokens, kMxBlock);
}

}  // namespace

Var Mx4::operator()(const Input& input, const Param& weight, const Var& bias, const Var& residual, bool conv1d,
                    std::int64_t part) const {
  const Var& x = input.value();
  require_groups(weight, x.shape().size() / x[-1]);
  if (!input.projected_) input.projected_ = mx4_project(x, {.method = method_});
  const Var w = mx4_project(weight(x.graph()), {.method = method_, .along_rows = conv1d});
  return mx4_layer(input.projected_, w, bias, residual, {.method = method_, .conv1d = conv1d, .part = part});
}

}  // namespace hpcdl::nn
