#pragma once
// Channels (protocol.h) on the barriers of shared memory. Kernels of sm_90 (arch.cuh).

#include "hpcdl/cuda/tile/protocol.h"
#include "hpcdl/cuda/tma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"

namespace hpcdl::cuda {

struct Mbarriers {
  using Barrier = cuda::Barrier;
  __device__ static void init(Barrier* b, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
  }
  /// Makes initialised barriers visible to the copy engine and to the cluster; then the block or the cluster meets.
  __device__ static void publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __device__ static void wait(Barrier* b, unsigned parity) {
    for (unsigned done = 0; done == 0;)
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.b32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(shared_address(b)), "r"(parity)
          : "memory");
  }
  __device__ static void expect(Barrier* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
  }
  /// Called by kEach threads: one arrives, or one for each block of the cluster.
  template <int kEach, int kBlocks> __device__ static void arrive(Barrier* b) {
    const unsigned thread = threadIdx.x % kEach;
    if constexpr (kBlocks == 1) {
      if (thread == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
    } else {
      static_assert(kBlocks <= kEach);
      if (thread < kBlocks)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_at(thread, b)) : "memory");
    }
  }
  /// The copies (async_copy.cuh) that the calling thread has issued count as one arrival when they are complete.
  __device__ static void arrive_with_copies(Barrier* b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
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
