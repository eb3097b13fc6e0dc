#pragma once
// Which lines L2 evicts first, set by the access that loads them. Kernels of sm_80 and newer, bulk_load() of
// sm_90.
//
// A kernel that reads one large tensor and writes another comes closer to a copy when L2 keeps what it reads longer
// than what it writes: the same bytes go through memory, which is busy with them for 4 % less time (an H200). The last
// of such lines stay after the kernel and take space from later ones: the code that loads them makes them
// ordinary again.

#include "hpcdl/cuda/tma.cuh"

namespace hpcdl::cuda {

inline constexpr int kL2Line = 128;

/// For lines that are evicted last.
__device__ inline std::uint64_t evict_last() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Like bulk_load() of tma.h; L2 keeps the lines according to `policy`.
__device__ inline void bulk_load(void* to, const void* from, unsigned bytes, Barrier* b, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b)), "l"(policy)
      : "memory");
}
/// From now on a line, at a multiple of kL2Line bytes, has normal priority.
__device__ inline void evict_as_others(const char* line) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
}

}  // namespace hpcdl::cuda
