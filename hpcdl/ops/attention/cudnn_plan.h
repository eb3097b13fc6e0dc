#pragma once
// Attention as a graph of cuDNN operations, in the form that its fused engines recognise. Compiled only with
// HPCDL_CUDNN.

#include "hpcdl/cuda/cudnn_plan.h"
#include "hpcdl/ops/attention/cudnn_attention.h"

namespace hpcdl::cuda::cudnn {

/// Tensor ids of a graph. Those from kScale on are numbers on the host.
enum AttentionId : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOutput,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kRowSums,
  kDqSums,
  kScale,
  kMasked,
  kOne,
  kQueries,
  kKeys,
  kBetween
};

/// Whether cuDNN supports the call's types, widths, addresses, with the library's version.
bool expressible(const Attend& c);
bool expressible(const AttendBackward& c);

/// The library's first choice with a workspace of at most `most` bytes; none if it has none.
std::optional<Plan> plan_of(const Attend& c, const Target& target, std::int64_t most);
std::optional<Plan> plan_of(const AttendBackward& c, DqSums sums, const Target& target, std::int64_t most);

}  // namespace hpcdl::cuda::cudnn
