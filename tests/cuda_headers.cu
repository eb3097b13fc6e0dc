// Compiled by nvcc, never run: what kernels of both devices share must stay readable by a CUDA compiler.

#include "hpcdl/core/device.h"
#include "hpcdl/core/dtype.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/core/shape.h"
#include "hpcdl/core/stream.h"
#include "hpcdl/core/tensor.h"

namespace {

// Storage types must convert in device code.
__global__ void round_trip(hpcdl::bf16* y, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = hpcdl::bf16(float(hpcdl::bf16(x[i])));
}

}  // namespace

void hpcdl_cuda_headers(hpcdl::Tensor y, hpcdl::View x) {
  round_trip<<<1, 32>>>(y.ptr<hpcdl::bf16>(), x.ptr<float>(), static_cast<int>(x.size()));
}
