#pragma once
// Channels (protocol.h) on the barriers of shared memory. Kernels of sm_90 (arch.cuh).

#include "hpcdl/cuda/tile/protocol.h"
#include "hpcdl/cuda/tma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"

namespace hpcdl::cuda {

struct Mbarriers {
  using Barrier = cuda::Barrier;
  __device__ static void init(Barrier* b, unsigned arrivals) { barrier_init(b, arrivals); }
  __device__ static void wait(Barrier* b, unsigned parity) { barrier_wait(b, parity); }
  __device__ static void expect(Barrier* b, unsigned bytes) { barrier_expect(b, bytes); }
  /// Called by kEach threads: one arrives, or one for each block of the cluster.
  template <int kEach, int kBlocks> __device__ static void arrive(Barrier* b) {
    const unsigned thread = threadIdx.x % kEach;
    if constexpr (kBlocks == 1) {
      if (thread == 0) barrier_arrive(b);
    } else {
      static_assert(kBlocks <= kEach);
      if (thread < kBlocks) barrier_arrive_at(b, thread);
    }
  }
  /// What these threads have read or written is so before the arrival of one of them.
  template <int kEach> __device__ static void meet() {
    static_assert(kEach <= 32, "warps of a warpgroup do not wait for each other here");
    if constexpr (kEach > 1) __syncwarp();
  }
  /// The same for what the copy engine or tensor cores access next.
  template <int kEach> __device__ static void fence() {
    fence_async_proxy();
    meet<kEach>();
  }
};

}  // namespace hpcdl::cuda
