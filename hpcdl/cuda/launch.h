#pragma once
// Launching a kernel: its error is reported at once and by name.

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::cuda {

inline constexpr int kWarp = 32;

inline unsigned blocks_for(std::int64_t work, std::int64_t per_block) {
  const std::int64_t n = (work + per_block - 1) / per_block;
  require(n <= 0x7fffffff, "cuda", "{} blocks are more than one launch can have", n);
  return static_cast<unsigned>(n);
}

/// Number of multiprocessors of the stream's GPU.
inline int multiprocessors(const Stream& s) {
  int n = 0;
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, s.device().index), "cudaDeviceGetAttribute");
  return n;
}

/// To be called after every launch: kernel<<<grid, block, shared, queue(s)>>>(...); launched("softmax");
inline void launched(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace hpcdl::cuda
