#include "python/src/gpu_kernels.h"

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 1024;

template <class T>
__global__ void __launch_bounds__(kThreads)
    plain(std::int32_t* to, const T* targets, std::int64_t n, std::int64_t ignore, std::int64_t vocabulary) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const std::int64_t t = targets[i];
  to[i] = t == ignore ? -1 : static_cast<std::int32_t>(t >= 0 && t < vocabulary ? t : vocabulary);
}

__global__ void __launch_bounds__(kThreads)
    share(float* to, const float* dloss, float value, const std::int32_t* targets, std::int64_t n, bool mean) {
  int valid = 0;
  if (mean)
    for (std::int64_t i = threadIdx.x; i < n; i += kThreads) valid += targets[i] >= 0;
  __shared__ int counts[kThreads / kWarp];
  valid = __reduce_add_sync(~0u, valid);
  if (threadIdx.x % kWarp == 0) counts[threadIdx.x / kWarp] = valid;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const int all = __reduce_add_sync(~0u, counts[threadIdx.x]);
  const float one = dloss ? *dloss : value;
  if (threadIdx.x == 0) *to = !mean ? one : all > 0 ? one / static_cast<float>(all) : 0.0f;
}

__global__ void quotient(float* x, const float* by) { *x /= *by; }
__global__ void put(StepParams* to, StepParams params) { *to = params; }

}  // namespace

void plain_targets(Stream& s, Tensor to, View targets, std::int64_t ignore, std::int64_t vocabulary) {
  const std::int64_t n = targets.size();
  if (n == 0) return;
  const unsigned blocks = blocks_for(n, kThreads);
  if (targets.dtype() == DType::i64)
    plain<<<blocks, kThreads, 0, queue(s)>>>(to.ptr<std::int32_t>(), targets.ptr<std::int64_t>(), n, ignore,
                                             vocabulary);
  else
    plain<<<blocks, kThreads, 0, queue(s)>>>(to.ptr<std::int32_t>(), targets.ptr<std::int32_t>(), n, ignore,
                                             vocabulary);
  launched("cross_entropy.targets");
}

void share_of_gradient(Stream& s, float* to, const float* dloss, float value, View targets, bool mean) {
  share<<<1, kThreads, 0, queue(s)>>>(to, dloss, value, targets.ptr<std::int32_t>(), targets.size(), mean);
  launched("cross_entropy.share");
}

void divide(Stream& s, float* x, const float* by) {
  quotient<<<1, 1, 0, queue(s)>>>(x, by);
  launched("cross_entropy.mean");
}

void put_params(Stream& s, StepParams* to, const StepParams& params) {
  put<<<1, 1, 0, queue(s)>>>(to, params);
  launched("step parameters");
}

}  // namespace hpcdl::cuda
