#pragma once
// Barriers in shared memory that count arrivals and bytes (mbarrier). Kernels use them through tile/channel.cuh. Kernels
// of sm_90 (arch.cuh).

#include <cstdint>

#include "hpcdl/cuda/tile/protocol.h"

namespace hpcdl::cuda {

using Barrier = std::uint64_t;  // in shared memory

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// To be called by one thread, then fence_barrier_init() and a __syncthreads() (with a cluster: cluster_sync()).
__device__ inline void barrier_init(Barrier* b, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(Barrier* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
/// Arrives at the same barrier of block `rank` of the cluster.
__device__ inline void barrier_arrive_at(Barrier* b, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(b)),
      "r"(rank)
      : "memory");
}
/// Arrives, and lets the phase wait for `bytes` more from the copy engine.
__device__ inline void barrier_expect(Barrier* b, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
__device__ inline bool barrier_try_wait(Barrier* b, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(b)), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ inline void barrier_wait(Barrier* b, unsigned parity) {
  while (!barrier_try_wait(b, parity)) {}
}

}  // namespace hpcdl::cuda
