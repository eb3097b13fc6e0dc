#pragma once
// Warps with different roles in one kernel: registers moved between them, barriers of some of them, clusters of
// blocks, and 8 x 8 matrices between registers and shared memory. Kernels of sm_90a (arch.h).

#include "hpcdl/cuda/mbarrier.cuh"

namespace hpcdl::cuda {

/// A warpgroup releases registers, or takes more (24 to 256, a multiple of 8, per thread); all its warps call. The
/// kernel needs
/// __launch_bounds__(threads, 1), and the roles must be branches of one if/else.
template <int kRegisters> __device__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads, whole warps.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// True in one lane of a converged warp, always the same.
__device__ inline bool elect_one() {
  unsigned p;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(p));
  return p != 0;
}
/// The number of the calling warp, known to the compiler as the same for all its lanes.
__device__ inline int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

// ---------------------------------------------------------------- clusters

__device__ inline unsigned cluster_rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() { cluster_arrive(), cluster_wait(); }

// ---------------------------------------------------------------- 8 x 8 matrices of 16-bit elements

/// Lane l gives the address of row l % 8 of matrix l / 8; register i then holds of matrix i row lane / 4, columns lane
/// % 4 * 2 and the next: two neighbours of a wgmma accumulator. Transposed: column and row are exchanged.
__device__ inline void load_matrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void store_matrices(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace hpcdl::cuda
