#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/cuda/relative_exp.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 512;

/// A row is read once: each thread keeps its sum relative to its own maximum.
template <class T> __global__ void __launch_bounds__(kThreads) rows(float* row_loss, float* lse, const T* logits, std::int64_t stride, std::int64_t cols,
                                                                     const std::int32_t* targets) {
  constexpr int N = kLanes<T>;
  __shared__ float tops[kThreads / kWarp], sums[kThreads / kWarp];
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
  float top = -__builtin_inff(), sum = 0;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < cols; at += kThreads * N) {
    const auto v = load<N>(x + at, static_cast<int>(cols - at < N ? cols - at : N), -__builtin_inff());
    const float here = largest(v);
    if (here > top) sum *= exp2f((top - here) * kLog2e), top = here;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += relative_exp(v.v[i], top);
  }
  const float all = block_reduce<kThreads>(top, Max{}, tops);
  const float part = top == -__builtin_inff() ? sum : sum * exp2f((top - all) * kLog2e);
  const float total = block_reduce<kThreads>(part, Sum{}, sums);
  if (threadIdx.x == 0) {
    const float log_sum = logf(total), at_target = target < cols ? widen(x[target]) : __builtin_nanf("");
    if (lse) lse[row] = all + log_sum;
    row_loss[row] = (all - at_target) + log_sum;  // all + log_sum first would cancel
  }
}

/// A fixed tree, in double.
__global__ void __launch_bounds__(kThreads) sum_rows(float* loss, float* count, const float* row_loss, const std::int32_t* targets, std::int64_t n) {
  __shared__ double losses[kThreads];
  __shared__ int counts[kThreads];
  double sum = 0;
  int valid = 0;
  for (std::int64_t r = threadIdx.x; r < n; r += kThreads) sum += static_cast<double>(row_loss[r]), valid += targets[r] >= 0;
  losses[threadIdx.x] = sum, counts[threadIdx.x] = valid;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) losses[threadIdx.x] += losses[threadIdx.x + half], counts[threadIdx.x] += counts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(losses[0]), *count = static_cast<float>(counts[0]);
}

struct Gradient {
  void* dx;
  const void* x;
  std::int64_t dx_stride, x_stride, cols;
  const std::int32_t* targets;
  const float *lse, *dloss;
  bool accumulate;
};

template <class T> __global__ void __launch_bounds__(kThreads) gradient(Gradient g) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.y, at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= g.cols) return;
  const int n = static_cast<int>(g.cols - at < N ? g.cols - at : N);
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride + at;
  const std::int32_t target = g.targets[row];
  const float dloss = g.dloss ? *g.dloss : 0.0f, lse = g.lse[row];
  Lanes<N> v(0.0f);
  if (target >= 0) {
    const auto x = load<N>(static_cast<const T*>(g.x) + row * g.x_stride + at, n);
    v = map<N>([&](int i) { return (exp2f((x.v[i] - lse) * kLog2e) - (at + i == target ? 1.0f : 0.0f)) * dloss; });
  }
  if (g.accumulate) v = v + load<N>(static_cast<const T*>(dx), n);
  store(dx, v, n);
}

}  // namespace

void cross_entropy(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, Tensor row_loss) {
  const std::int64_t n = logits.rows();
  if (n > 0) {
    visit_dtype(logits.dtype(), [&]<class T>() {
      rows<T><<<blocks_for(n, 1), kThreads, 0, queue(s)>>>(row_loss.ptr<float>(), lse ? lse.ptr<float>() : nullptr, logits.ptr<T>(),
                                                            logits.row_stride(), logits.cols(), targets.ptr<std::int32_t>());
    });
    launched("cross_entropy");
  }
  cross_entropy_sum(s, loss, count, row_loss, targets);
}

void cross_entropy_sum(Stream& s, Tensor loss, Tensor count, View row_loss, View targets) {
  sum_rows<<<1, kThreads, 0, queue(s)>>>(loss.ptr<float>(), count.ptr<float>(), row_loss.ptr<float>(), targets.ptr<std::int32_t>(), row_loss.size());
  launched("cross_entropy.sum");
}

void cross_entropy_backward(Stream& s, Grad dlogits, View logits, View targets, View lse, View dloss) {
  const Gradient g{dlogits.data(), logits.data(), dlogits.row_stride(), logits.row_stride(), logits.cols(), targets.ptr<std::int32_t>(),
                   lse.ptr<float>(), dloss ? dloss.ptr<float>() : nullptr, dlogits.accumulate()};
  for (std::int64_t first = 0; first < logits.rows(); first += 65535) {  // the y dimension of a grid ends there
    const std::int64_t n = logits.rows() - first < 65535 ? logits.rows() - first : 65535;
    visit_dtype(logits.dtype(), [&]<class T>() {
      Gradient part = g;
      part.dx = static_cast<T*>(g.dx) + first * g.dx_stride;
      part.x = static_cast<const T*>(g.x) + first * g.x_stride;
      part.targets += first, part.lse += first;
      gradient<T><<<dim3(blocks_for(g.cols, kThreads * kLanes<T>), static_cast<unsigned>(n)), kThreads, 0, queue(s)>>>(part);
      launched("cross_entropy_backward");
    });
  }
}

}  // namespace hpcdl::cuda
