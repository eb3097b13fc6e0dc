// A kernel of your own under `hpcdl verify`, in CUDA. Compile it against the installed header,
//     nvcc -O2 -shared -Xcompiler -fPIC -I PREFIX/include 04_my_kernels.cu -o my_cuda_kernels.so
// and verify it: hpcdl verify ./my_cuda_kernels.so
#include <cuda_fp16.h>

#include "hpcdl/kernel_abi.h"

namespace {

// Contract "rms_norm": y = x / sqrt(mean(x^2) + eps) * weight over the last dim; x (rows, n), weight (n). A warp has a
// row.
template <class T>
__global__ void rms_norm_rows(T* y, const T* x, const T* weight, int64_t rows, int64_t n, float eps) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  float squares = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) squares += float(x[row * n + i]) * float(x[row * n + i]);
  for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(~0u, squares, offset);
  const float scale = 1 / sqrtf(squares / float(n) + eps);
  for (int64_t i = threadIdx.x % 32; i < n; i += 32)
    y[row * n + i] = T(float(x[row * n + i]) * scale * float(weight[i]));
}

int rms_norm(const hpcdl_call* call) {
  const hpcdl_tensor &x = call->inputs[0], &weight = call->inputs[1], &y = call->outputs[0];
  const int64_t rows = x.shape[0], n = x.shape[1];
  const float eps = static_cast<const hpcdl_norm_args*>(call->args)->eps;
  if (rows * n == 0) return HPCDL_OK;
  if (x.dtype != weight.dtype) return HPCDL_UNSUPPORTED;
  const auto blocks = static_cast<unsigned>((rows + 7) / 8);
  const auto stream =
      static_cast<cudaStream_t>(call->stream);  // it must queue its work on this stream, and must not wait
  if (x.dtype == HPCDL_F16)
    rms_norm_rows<<<blocks, 256, 0, stream>>>(static_cast<__half*>(y.data), static_cast<const __half*>(x.data),
                                              static_cast<const __half*>(weight.data), rows, n, eps);
  else
    rms_norm_rows<<<blocks, 256, 0, stream>>>(static_cast<float*>(y.data), static_cast<const float*>(x.data),
                                              static_cast<const float*>(weight.data), rows, n, eps);
  return cudaGetLastError() == cudaSuccess ? HPCDL_OK : -1;
}

// It supports f32 and f16 and may overwrite its input.
const hpcdl_kernel kernels[] = {{"rms_norm", "my_rms_norm", HPCDL_TAKES_F32 | HPCDL_TAKES_F16, HPCDL_IN_PLACE,
                                 HPCDL_ON_CUDA, rms_norm, nullptr, nullptr}};

}  // namespace

HPCDL_KERNEL_EXPORT const hpcdl_kernel_table* hpcdl_kernels(void) {
  static const hpcdl_kernel_table table = {HPCDL_KERNEL_ABI, sizeof kernels / sizeof kernels[0], kernels};
  return &table;
}
