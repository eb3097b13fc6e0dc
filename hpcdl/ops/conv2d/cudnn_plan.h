#pragma once
// A convolution as cuDNN's graph of operations, and the plans for it that keep our promises. Only where HPCDL_CUDNN.

#include "hpcdl/cuda/cudnn_plan.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda::cudnn {

/// What tensors are called in a graph.
enum Id : std::int64_t { kX = 1, kW, kDy, kBias, kOut, kSums };

/// Whether cuDNN may be asked: types, addresses.
bool expressible(const Conv& c);

/// The library's choices that repeat their bits, multiply in c.compute, of 16 bits on tensor cores, and sum in f32,
/// with a workspace of at most `most` bytes: in its order, `count` at most; none where it has none.
std::vector<Plan> plans_of(const Conv& c, const Target& target, std::int64_t most, int count);

}  // namespace hpcdl::cuda::cudnn
