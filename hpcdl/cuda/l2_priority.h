#pragma once
// Which lines L2 gives up first, said with the access that brings them. Kernels of sm_80 and newer.
//
// A kernel that reads one large tensor and writes another comes closer to a copy when L2 keeps what it reads longer
// than what it writes: the same bytes go through memory, which is busy with them for 4 % less time (an H200). But such
// lines stay when the kernel is done, for good: those who come after find 20 MiB less of L2. So whoever brings them
// makes them ordinary again.

#include <cstdint>

namespace hpcdl::cuda {

inline constexpr int kL2Line = 128;

/// For lines that go when all others are gone.
__device__ inline std::uint64_t evict_last() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// A line, at a multiple of kL2Line bytes, goes as any other from here on.
__device__ inline void evict_as_others(const void* line) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
}

}  // namespace hpcdl::cuda
