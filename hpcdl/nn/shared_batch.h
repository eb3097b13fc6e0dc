#pragma once
// What a module does in training where several ranks share a batch and it looks at all of it. Modules know no more of
// that than this; parallel/ sets and implements it.

#include "hpcdl/graph/graph.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"

namespace hpcdl::nn {

class SharedBatch {
 public:
  virtual ~SharedBatch() = default;
  /// hpcdl::batch_norm() by the statistics of all ranks' batches.
  virtual Var batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean,
                         const Var& running_var, const hpcdl::BatchNorm::Args& a, const Var& residual) const = 0;
};

}  // namespace hpcdl::nn
