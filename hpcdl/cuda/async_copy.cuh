#pragma once
// Copies from global to shared memory without registers, for sm_80 and later (.cu files).

#include "hpcdl/cuda/mbarrier.cuh"

namespace hpcdl::cuda {

/// 16 bytes at multiples of 16; unless `there`, writes zeros and does not read `from`.
__device__ inline void copy_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
/// The same with 8 bytes at multiples of 8.
__device__ inline void copy_8(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 8 : 0)
               : "memory");
}
/// Whichever of them fills `to`.
__device__ inline void copy_piece(uint4* to, const void* from, bool there) { copy_16(to, from, there); }
__device__ inline void copy_piece(uint2* to, const void* from, bool there) { copy_8(to, from, there); }
/// Ends a group of copies of the calling thread.
__device__ inline void copies_issued() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kGroups groups of the calling thread have arrived; others need a barrier.
template <int kGroups> __device__ void copies_arrived() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace hpcdl::cuda
