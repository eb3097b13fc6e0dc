#pragma once
// Addresses of shared memory, and the type of barriers in it that count arrivals and bytes (mbarrier). Kernels use them
// through tile/channel.cuh.

#include <cstdint>

namespace hpcdl::cuda {

using Barrier = std::uint64_t;

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
/// The address of the same place in block `rank` of the cluster.
__device__ inline unsigned address_at(unsigned rank, const void* p) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}

}  // namespace hpcdl::cuda
