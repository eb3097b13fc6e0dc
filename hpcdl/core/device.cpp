#include "hpcdl/core/device.h"

#if HPCDL_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hpcdl {

int cuda_devices() {
#if HPCDL_CUDA
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  cudaGetLastError();  // no driver is an answer, not an error that a later call should report
#endif
  return 0;
}

}  // namespace hpcdl
