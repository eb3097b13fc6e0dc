#pragma once
// A convolution as cuDNN's graph of operations, and the first plan for it that keeps our promises. Only where HPCDL_CUDNN.

#include "hpcdl/cuda/cudnn_plan.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda::cudnn {

/// What tensors are called in a graph.
enum Id : std::int64_t { kX = 1, kW, kDy, kBias, kOut, kSums };

/// Whether cuDNN may be asked: types, addresses.
bool expressible(const Conv& c);

/// The library's first choice that repeats its bits, multiplies in c.compute and sums in f32, with a workspace of at most `most` bytes;
/// none where it has none.
std::optional<Plan> plan_of(const Conv& c, const Target& target, std::int64_t most);

}  // namespace hpcdl::cuda::cudnn
