#pragma once
// Barriers in shared memory that count arrivals and bytes (mbarrier), and the ring of stages that a producer and its
// consumers use with them. Kernels of sm_90 (arch.h).
//
//   full[stage]:  the producer says how many bytes come (barrier_expect), the copy engine counts them, consumers wait
//   empty[stage]: every consumer arrives when it has read, the producer waits. An arrival overtakes loads whose values
//                 nothing has used yet, and the copy engine then writes over them: fence_async_proxy() (tma.h) first.
// A wait names the parity of the phase that must have ended: 0 for the first phase of a barrier, then 1, 0, ... A wait
// for parity 1 on a fresh barrier passes, so a producer begins with Ring{.parity = 1} and consumers with Ring{}.

#include <cstdint>

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
/// A position in a ring of kStages stages and the parity to wait for.
template <int kStages> struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ void skip(int n) {
    stage += n;
    parity ^= static_cast<unsigned>(stage / kStages) & 1;
    stage %= kStages;
  }
};

}  // namespace hpcdl::cuda
