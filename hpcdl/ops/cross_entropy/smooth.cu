#include "hpcdl/ops/cross_entropy/smooth.h"

#include "hpcdl/cuda/relative_exp.h"
#include "hpcdl/cuda/sweep.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kPacks = 2;  // few classes: an image model's head, not a vocabulary

/// The sum of `mine` over the block, in a fixed order; valid in thread 0.
__device__ float block_sum(float mine, float (&memory)[kThreads]) {
  memory[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) memory[threadIdx.x] += memory[threadIdx.x + half];
  }
  return memory[0];
}

/// Block: one row. Its distances to the mean of all classes are taken from x[0], which is near them where logits are large.
template <class T> __global__ void __launch_bounds__(kThreads)
    rows(float* row_loss, float* lse, const T* logits, std::int64_t stride, std::int64_t cols, const std::int32_t* targets, const float* weights, float smoothing) {
  __shared__ float memory[2][kWarp], sums[kThreads];
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * stride;
  const std::int32_t target = targets[row];
  if (target < 0) {
    if (threadIdx.x == 0) {
      row_loss[row] = 0;
      if (lse) lse[row] = 0;
    }
    return;
  }
  SumOfExp all;
  sweep<kThreads, kPacks, false>(x, cols, narrow<T>(-__builtin_inff()), row_lead<T>(row, cols), [&](std::int64_t, const auto& v) { all.add(v); });
  all.template over_block<kThreads>(memory);
  float far = 0;
  if (smoothing > 0) {
    const float origin = widen(x[0]);
    float mine = 0;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) mine += origin - widen(x[c]);
    far = block_sum(mine, sums) / static_cast<float>(cols) - origin;  // - mean(x)
  }
  if (threadIdx.x != 0) return;
  const float log_sum = logf(all.sum), at_target = target < cols ? widen(x[target]) : __builtin_nanf("");
  if (lse) lse[row] = all.top + log_sum;
  const float even = smoothing > 0 ? smoothing * (all.top + far) : 0.0f;
  row_loss[row] = (weights ? weights[row] : 1.0f) * ((1.0f - smoothing) * (all.top - at_target) + even + log_sum);
}

/// A fixed tree, in double.
__global__ void __launch_bounds__(kThreads) sum_rows(float* loss, float* count, const float* row_loss, const std::int32_t* targets, const float* weights, std::int64_t n) {
  __shared__ double losses[kThreads], counts[kThreads];
  double sum = 0, valid = 0;
  for (std::int64_t r = threadIdx.x; r < n; r += kThreads) {
    if (targets[r] < 0) continue;
    sum += static_cast<double>(row_loss[r]);
    valid += weights ? static_cast<double>(weights[r]) : 1.0;
  }
  losses[threadIdx.x] = sum, counts[threadIdx.x] = valid;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) losses[threadIdx.x] += losses[threadIdx.x + half], counts[threadIdx.x] += counts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(losses[0]), *count = static_cast<float>(counts[0]);
}

template <class T> __global__ void __launch_bounds__(kThreads)
    gradient(T* dlogits, std::int64_t dx_stride, const T* logits, std::int64_t stride, std::int64_t cols, const std::int32_t* targets, const float* weights, const float* lse,
             const float* dloss, float smoothing, bool add) {
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * stride;
  T* dx = dlogits + row * dx_stride;
  const std::int32_t target = targets[row];
  const float scale = target >= 0 && dloss ? *dloss * (weights ? weights[row] : 1.0f) : 0.0f, shift = lse[row], even = smoothing / static_cast<float>(cols);
  for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float p = fast_exp2((widen(x[c]) - shift) * kLog2e) - even - (c == target ? 1.0f - smoothing : 0.0f);
    const float d = target < 0 ? 0.0f : p * scale;  // whatever x is
    dx[c] = narrow<T>(add ? widen(dx[c]) + d : d);
  }
}

}  // namespace

void smooth_cross_entropy(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, View weights, Tensor row_loss, float smoothing) {
  const std::int64_t n = logits.rows();
  const float* w = weights ? weights.ptr<float>() : nullptr;
  if (n > 0) {
    visit_dtype(logits.dtype(), [&]<class T>() {
      rows<T><<<blocks_for(n, 1), kThreads, 0, queue(s)>>>(row_loss.ptr<float>(), lse ? lse.ptr<float>() : nullptr, logits.ptr<T>(), logits.row_stride(), logits.cols(),
                                                           targets.ptr<std::int32_t>(), w, smoothing);
    });
    launched("smooth_cross_entropy");
  }
  sum_rows<<<1, kThreads, 0, queue(s)>>>(loss.ptr<float>(), count.ptr<float>(), row_loss.ptr<float>(), targets.ptr<std::int32_t>(), w, n);
  launched("smooth_cross_entropy.sum");
}

void smooth_cross_entropy_backward(Stream& s, Grad dlogits, View logits, View targets, View weights, View lse, View dloss, float smoothing) {
  if (logits.rows() == 0) return;
  visit_dtype(logits.dtype(), [&]<class T>() {
    gradient<T><<<blocks_for(logits.rows(), 1), kThreads, 0, queue(s)>>>(dlogits.ptr<T>(), dlogits.row_stride(), logits.ptr<T>(), logits.row_stride(), logits.cols(),
                                                                        targets.ptr<std::int32_t>(), weights ? weights.ptr<float>() : nullptr, lse.ptr<float>(),
                                                                        dloss ? dloss.ptr<float>() : nullptr, smoothing, dlogits.accumulate());
  });
  launched("smooth_cross_entropy_backward");
}

}  // namespace hpcdl::cuda
