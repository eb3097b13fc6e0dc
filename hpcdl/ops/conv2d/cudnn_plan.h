#pragma once
// A convolution as cuDNN's graph of operations, and the first plan for it that keeps our promises. Only where HPCDL_CUDNN.

#include <optional>

#include "hpcdl/ops/conv2d/cudnn_library.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda::cudnn {

/// What tensors are called in a graph.
enum Id : std::int64_t { kX = 1, kW, kDy, kBias, kOut, kSums };

struct Plan {
  Descriptor plan;
  std::int64_t workspace = 0;  // bytes
};

/// Whether cuDNN may be asked: types, addresses.
bool expressible(const Conv& c);

/// The library's first choice that repeats its bits, multiplies in c.compute and sums in f32, with a workspace of at most `most` bytes;
/// none where it has none. `handle`, or for a GPU that is elsewhere its properties (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, cuDNN 9.8).
std::optional<Plan> plan_of(const Conv& c, cudnnHandle_t handle, std::int64_t most, const Descriptor* device = nullptr);

}  // namespace hpcdl::cuda::cudnn
