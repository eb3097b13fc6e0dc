#include "hpcdl/core/host_call.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {

#if HPCDL_CUDA

void queue_host_call(const Stream& s, void (*f)(void*), void* data) {
  cuda::check(cudaLaunchHostFunc(cuda::queue(s), f, data), "cudaLaunchHostFunc");
}

bool is_pinned(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) return cudaGetLastError(), false;
  return attributes.type == cudaMemoryTypeHost;
}

#else

void queue_host_call(const Stream& s, void (*f)(void*), void* data) {
  s.require_cpu();
  f(data);
}

bool is_pinned(const void*) { return false; }

#endif

}  // namespace hpcdl
