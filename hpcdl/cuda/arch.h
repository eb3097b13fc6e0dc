#pragma once
// Which instructions a kernel may use. The body of a kernel made of wgmma, setmaxnreg or TMA stands under `#if HPCDL_SM90A`, so
// that one source also compiles for older GPUs, where the kernel is empty; the host asks has_sm90a() before it launches one.

#include "hpcdl/cuda/launch.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HPCDL_SM90A 1
#else
#define HPCDL_SM90A 0
#endif

namespace hpcdl::cuda {
namespace detail {

/// Never launched: its limit of threads tells which code the running GPU got.
static __global__ void __launch_bounds__(HPCDL_SM90A ? 64 : 32) arch_probe() {}

}  // namespace detail

/// True when the stream's GPU runs code with Hopper's own instructions. Asks the runtime once per device and file.
inline bool has_sm90a(const Stream& s) {
  static signed char known[64] = {};
  signed char& answer = known[s.device().index % 64];
  if (answer == 0) {
    cudaFuncAttributes a;
    check(cudaFuncGetAttributes(&a, detail::arch_probe), "cudaFuncGetAttributes");
    answer = a.maxThreadsPerBlock == 64 ? 1 : -1;
  }
  return answer > 0;
}

}  // namespace hpcdl::cuda
