#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/fp8_amax/fp8_amax.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

struct Magnitudes {
  const float* of[Fp8Amax::kTensors];
  long long count[Fp8Amax::kTensors];
};

/// A block for each tensor.
__global__ void __launch_bounds__(kThreads) raise(float* now, Magnitudes m) {
  __shared__ float shared[kThreads / kWarp];
  const float* x = m.of[blockIdx.x];
  float most = 0;
  for (long long i = threadIdx.x; i < m.count[blockIdx.x]; i += kThreads)
    if (isfinite(x[i])) most = fmaxf(most, x[i]);
  most = block_reduce<kThreads>(most, Max(), shared);
  if (threadIdx.x == 0 && most > now[blockIdx.x]) now[blockIdx.x] = most;
}

/// A thread for each column.
__global__ void __launch_bounds__(kThreads) step(const StepParams* p, float* history, long long tensors) {
  const long long t = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= tensors) return;
  if (!p->skip)
    for (int i = kAmaxSteps; i > 0; --i) history[i * tensors + t] = history[(i - 1) * tensors + t];
  history[t] = 0;
}

}  // namespace

void fp8_amax(Stream& s, Tensor now, View x, View w, View dy) {
  const Magnitudes m{{x.ptr<float>(), w.ptr<float>(), dy.ptr<float>()}, {x.size(), w.size(), dy.size()}};
  raise<<<Fp8Amax::kTensors, kThreads, 0, queue(s)>>>(now.ptr<float>(), m);
  launched("fp8_amax");
}

void fp8_amax_step(Stream& s, Tensor history) {
  step<<<blocks_for(history[1], kThreads), kThreads, 0, queue(s)>>>(s.kernel_params(), history.ptr<float>(),
                                                                    history[1]);
  launched("fp8_amax.step");
}

}  // namespace hpcdl::cuda
