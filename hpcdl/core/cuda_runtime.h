#pragma once
// The CUDA runtime as this library uses it. Only for builds with CUDA; include it only from .cpp and .cu files.

#include <cuda_runtime_api.h>

#include "hpcdl/core/error.h"
#include "hpcdl/device.h"
#include "hpcdl/stream.h"

namespace hpcdl::cuda {

/// Throws the error of the runtime. `what` names the call or the kernel.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]]
    fail("cuda", "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

/// The CUDA stream of a stream.
inline cudaStream_t queue(const Stream& s) { return static_cast<cudaStream_t>(s.native()); }

/// Makes `d` the calling thread's device for its lifetime.
class OnDevice {
 public:
  explicit OnDevice(Device d) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != d.index) check(cudaSetDevice(d.index), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace hpcdl::cuda
