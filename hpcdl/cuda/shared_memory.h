#pragma once

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

/// Whether the GPU is an sm_80 or later and its blocks may use `bytes` of shared memory.
inline bool has_room(const Stream& s, int bytes) {
  const auto attribute = [&](cudaDeviceAttr what) {
    int v = 0;
    check(cudaDeviceGetAttribute(&v, what, s.device().index), "cudaDeviceGetAttribute");
    return v;
  };
  return attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= bytes;
}

}  // namespace hpcdl::cuda
