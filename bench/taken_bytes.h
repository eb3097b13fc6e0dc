#pragma once
// Memory that a side of a comparison uses.

#include <sys/resource.h>

#include <cstdint>

#include "hpcdl/device.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::bench {

/// The largest resident size of this process, or the bytes of a GPU that are not free.
inline std::int64_t taken_bytes([[maybe_unused]] Device device) {
#if HPCDL_CUDA
  if (device.is_cuda()) {
    const cuda::OnDevice on(device);
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(total - free);
  }
#endif
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace hpcdl::bench
