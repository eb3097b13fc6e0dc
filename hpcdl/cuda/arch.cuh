#pragma once
// Which instructions a kernel may use. The body of a kernel with wgmma, setmaxnreg or TMA is inside `#if
// HPCDL_SM90A`, so that the source also compiles for older GPUs, where the kernel is empty; the host checks has_sm90a()
// before it launches one.

#include "hpcdl/cuda/launch.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HPCDL_SM90A 1
#else
#define HPCDL_SM90A 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HPCDL_CLUSTERS 1
#else
#define HPCDL_CLUSTERS 0
#endif

namespace hpcdl::cuda {
namespace detail {

/// Never launched: its thread limit shows which code the current GPU uses.
static __global__ void __launch_bounds__(HPCDL_SM90A ? 96 : HPCDL_CLUSTERS ? 64 : 32) arch_probe() {}

/// That limit. Queries the runtime once per device and file.
inline int probed(const Stream& s) {
  static signed char known[64] = {};
  signed char& answer = known[s.device().index % 64];
  if (answer == 0) {
    cudaFuncAttributes a;
    check(cudaFuncGetAttributes(&a, arch_probe), "cudaFuncGetAttributes");
    answer = static_cast<signed char>(a.maxThreadsPerBlock);
  }
  return answer;
}

}  // namespace detail

/// True when the stream's GPU runs code with Hopper's own instructions.
inline bool has_sm90a(const Stream& s) { return detail::probed(s) == 96; }
/// True when it runs code for GPUs with clusters of blocks.
inline bool has_clusters(const Stream& s) { return detail::probed(s) >= 64; }

}  // namespace hpcdl::cuda
