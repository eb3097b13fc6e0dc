/* A kernel of your own under `hpcdl verify`, in C. Compile it against the installed header,
 *     cc -O2 -std=c99 -shared -fPIC -I PREFIX/include 04_my_kernels.c -o my_kernels.so -lm
 * and let it be verified: hpcdl verify ./my_kernels.so */
#include <math.h>

#include "hpcdl/kernel_abi.h"

/* Contract "rms_norm": y = x / sqrt(mean(x^2) + eps) * weight over the last dim; x (rows, n), weight (n). */
static int rms_norm(const hpcdl_call* call) {
  const float *x = call->inputs[0].data, *weight = call->inputs[1].data;
  float* y = call->outputs[0].data;
  const int64_t rows = call->inputs[0].shape[0], n = call->inputs[0].shape[1];
  const float eps = ((const hpcdl_norm_args*)call->args)->eps;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    float squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
    const float scale = 1 / sqrtf(squares / (float)n + eps);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
  }
  return HPCDL_OK;
}

/* It takes f32, may write over its input, and gives the same bits on any number of threads: it uses one. */
static const hpcdl_kernel kernels[] = {
    {"rms_norm", "my_rms_norm", HPCDL_TAKES_F32, HPCDL_IN_PLACE | HPCDL_SAME_BITS_ANY_THREADS, HPCDL_ON_CPU, rms_norm, NULL, NULL}};

HPCDL_KERNEL_EXPORT const hpcdl_kernel_table* hpcdl_kernels(void) {
  static const hpcdl_kernel_table table = {HPCDL_KERNEL_ABI, sizeof kernels / sizeof kernels[0], kernels};
  return &table;
}
