#include "hpcdl/core/device_model.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

std::string device_model([[maybe_unused]] Device device) {
#if HPCDL_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp p;
    cuda::check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties");
    return p.name;
  }
#endif
  return "cpu";
}

}  // namespace hpcdl
