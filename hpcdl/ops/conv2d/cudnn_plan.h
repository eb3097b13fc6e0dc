#pragma once
// A convolution as a graph of cuDNN operations, and the plans for it that keep our promises. Compiled only with
// HPCDL_CUDNN.

#include "hpcdl/cuda/cudnn_plan.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda::cudnn {

/// Tensor ids of a graph.
enum Id : std::int64_t { kX = 1, kW, kDy, kBias, kOut, kSums };

/// Whether cuDNN supports the call's types and addresses.
bool expressible(const Conv& c);

/// The library's choices that are reproducible bit for bit, multiply in c.compute (16-bit types on tensor cores) and
/// sum in f32, with a workspace of at most `most` bytes: in the library's order, at most `count`; empty if it has none.
std::vector<Plan> plans_of(const Conv& c, const Target& target, std::int64_t most, int count);

}  // namespace hpcdl::cuda::cudnn
