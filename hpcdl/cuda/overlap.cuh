#pragma once
// Overlapping launches (programmatic dependent launch, sm_90 and later): a kernel may begin before the previous kernel
// of its stream has ended. Short kernels then hide each other's start-up, and weights are loaded before the activations
// are ready.
//
// In a kernel that launch_overlapped() starts, every thread must call await_previous() before it touches memory that an
// earlier kernel writes or reads, and in any case before it ends, because the next kernel relies on that.

#include "hpcdl/cuda/arch.cuh"

namespace hpcdl::cuda {

/// Waits until the previous kernel has ended and its results can be read. Returns at once in other launches.
__device__ inline void await_previous() {
#if HPCDL_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may begin after every block has called this, if it was launched with an overlap.
__device__ inline void let_next_begin() {
#if HPCDL_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Loads 16 bytes that no kernel writes while this one runs. The load is relaxed so that it stays before
/// await_previous(): ptxas moves an ld.global.nc to after it.
__device__ inline uint4 stream16(const void* p) {
  uint4 r;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p)
               : "memory");
  return r;
}

/// Whether a launch over this number of rows, or blocks, is short enough to gain, and the GPU supports it.
inline bool overlaps(const Stream& s, std::int64_t rows) { return rows <= 64 && has_clusters(s); }

struct Launch {
  dim3 grid, block;
  std::size_t shared = 0;  // bytes
  unsigned cluster = 1;    // blocks of one
};

/// `overlap`: whether it may begin early; false if the GPU does not support it.
template <class... P, class... A>
void launch_overlapped(cudaStream_t queue, bool overlap, void (*kernel)(P...), const Launch& l, const char* name,
                       A&&... args) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid, config.blockDim = l.block, config.dynamicSmemBytes = l.shared;
  config.stream = queue, config.attrs = attributes;
  if (overlap) {
    auto& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (l.cluster > 1) {
    auto& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {l.cluster, 1, 1};
  }
  check(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...), name);
}

}  // namespace hpcdl::cuda
