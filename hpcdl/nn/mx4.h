#pragma once

#include "hpcdl/nn/fp8.h"
#include "hpcdl/ops/mx4_layer/mx4_layer.h"

namespace hpcdl::nn {

/// How a layer multiplies in an emulation of MXFP4 (ops/mx4_layer). Weights are rounded from their f32 values.
class Mx4 {
 public:
  explicit Mx4(Mx4Method method) : method_(method) {}

  /// x W^T + bias + residual. `part`: of the batch that ranks share, whose draws differ. Throws UsageError if the layer or
  /// the number of tokens is no multiple of a group.
  Var operator()(const Input& x, const Param& weight, const Var& bias, const Var& residual, bool conv1d,
                 std::int64_t part) const;

 private:
  Mx4Method method_;
};

}  // namespace hpcdl::nn
