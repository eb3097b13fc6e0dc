#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/cuda/relative_exp.h"
#include "hpcdl/cuda/sweep.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 512, kPacks = 4;  // packs that a thread has under way

/// What rows weigh (1 without), and the share of a target that all classes have: smooth.h.
struct Smoothing {
  const float* weights;
  float share;
  __device__ float weight(std::int64_t row) const { return weights ? weights[row] : 1.0f; }
};

/// The mean over the row of (origin - x), minus the origin. With x[0] as origin distances are small where logits are large. The row
/// was read just now and comes out of the cache. In thread 0.
template <int kThreads, class T> __device__ float minus_mean(const T* x, std::int64_t cols, float* memory) {
  const float origin = widen(x[0]);
  float mine = 0;
  for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) mine += origin - widen(x[c]);
  return block_reduce<kThreads>(mine, Sum{}, memory) / static_cast<float>(cols) - origin;
}

/// A row is read once: each thread keeps its sum relative to its own maximum.
template <class T, int kThreads, bool kWhole> __global__ void __launch_bounds__(kThreads) rows(float* row_loss, float* lse, const T* logits, std::int64_t stride, std::int64_t cols,
                                                                     const std::int32_t* targets, Smoothing smooth) {
  __shared__ float memory[3][kWarp];
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
  sweep<kThreads, kPacks, kWhole>(x, cols, narrow<T>(-__builtin_inff()), row_lead<T>(row, cols), [&](std::int64_t, const auto& v) { all.add(v); });
  all.template over_block<kThreads>(memory);
  const float even = smooth.share > 0 ? smooth.share * (all.top + minus_mean<kThreads>(x, cols, memory[2])) : 0.0f;
  if (threadIdx.x == 0) {
    const float log_sum = logf(all.sum), at_target = target < cols ? widen(x[target]) : __builtin_nanf("");
    if (lse) lse[row] = all.top + log_sum;
    row_loss[row] = smooth.weight(row) * ((1.0f - smooth.share) * (all.top - at_target) + even + log_sum);  // top + log_sum first would cancel
  }
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

struct Gradient {
  void* dx;
  const void* x;
  std::int64_t dx_stride, x_stride, cols;
  const std::int32_t* targets;
  const float *lse, *dloss;
  Smoothing smooth;
  bool accumulate;
};

/// Blocks (turn of the sweep, row); gridDim.x of them share a row.
template <class T, bool kWhole> __global__ void __launch_bounds__(kThreads) gradient(Gradient g) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.y;
  const T* x = static_cast<const T*>(g.x) + row * g.x_stride;
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride;
  const std::int32_t target = g.targets[row];
  const float scale = target >= 0 && g.dloss ? g.smooth.weight(row) * *g.dloss : 0.0f, lse = g.lse[row];
  const float even = g.smooth.share / static_cast<float>(g.cols), own = 1.0f - g.smooth.share;
  const auto body = [&](std::int64_t col, const auto& v) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = col + k * kThreads * N, left = g.cols - at;
      if (left <= 0) break;
      const int from = !kWhole && at < 0 ? static_cast<int>(-at) : 0, to = static_cast<int>(left < N ? left : N), hit = static_cast<int>(target - at);
      auto d = map<N>([&, in = widen(v[k])](int i) { return (fast_exp2((in.v[i] - lse) * kLog2e) - even - (i == hit ? own : 0.0f)) * scale; });
      if (target < 0) d = Lanes<N>(0.0f);  // whatever x is
      if (g.accumulate) d = d + widen(read<N>(static_cast<const T*>(dx + at), from, to, T{}));
      if constexpr (kWhole) write_aligned(dx + at, pack<T>(d));
      else write(dx + at, pack<T>(d), from, to);
    }
  };
  sweep<kThreads, kPacks, kWhole>(x, g.cols, T{}, row_lead<T>(row, g.cols), body, blockIdx.x, gridDim.x);
}

Smoothing smoothing_of(View weights, float share) { return {weights ? weights.ptr<float>() : nullptr, share}; }

}  // namespace

void cross_entropy(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, Tensor row_loss, View weights, float smoothing) {
  const std::int64_t n = logits.rows();
  if (n > 0) {
    visit_dtype(logits.dtype(), [&]<class T>() {
      const auto launch = [&]<int kThreads>() {
        const auto kernel = whole_packs<T>(logits.cols(), {{logits.data(), logits.row_stride()}}) ? rows<T, kThreads, true> : rows<T, kThreads, false>;
        kernel<<<blocks_for(n, 1), kThreads, 0, queue(s)>>>(row_loss.ptr<float>(), lse ? lse.ptr<float>() : nullptr, logits.ptr<T>(), logits.row_stride(),
                                                            logits.cols(), targets.ptr<std::int32_t>(), smoothing_of(weights, smoothing));
      };
      if (sweep_turns<T>(logits.cols(), 128, kPacks) <= 2) launch.template operator()<128>();
      else launch.template operator()<512>();
    });
    launched("cross_entropy");
  }
  cross_entropy_sum(s, loss, count, row_loss, targets, weights);
}

void cross_entropy_sum(Stream& s, Tensor loss, Tensor count, View row_loss, View targets, View weights) {
  sum_rows<<<1, kThreads, 0, queue(s)>>>(loss.ptr<float>(), count.ptr<float>(), row_loss.ptr<float>(), targets.ptr<std::int32_t>(),
                                         smoothing_of(weights, 0).weights, row_loss.size());
  launched("cross_entropy.sum");
}

void cross_entropy_backward(Stream& s, Grad dlogits, View logits, View targets, View lse, View dloss, View weights, float smoothing) {
  const Gradient g{dlogits.data(), logits.data(), dlogits.row_stride(), logits.row_stride(), logits.cols(), targets.ptr<std::int32_t>(),
                   lse.ptr<float>(), dloss ? dloss.ptr<float>() : nullptr, smoothing_of(weights, smoothing), dlogits.accumulate()};
  constexpr std::int64_t kBlocks = 2048;  // enough for any GPU to be evenly busy
  for (std::int64_t first = 0; first < logits.rows(); first += 65535) {  // the y dimension of a grid ends there
    const std::int64_t n = logits.rows() - first < 65535 ? logits.rows() - first : 65535;
    visit_dtype(logits.dtype(), [&]<class T>() {
      Gradient part = g;
      part.dx = static_cast<T*>(g.dx) + first * g.dx_stride;
      part.x = static_cast<const T*>(g.x) + first * g.x_stride;
      part.targets += first, part.lse += first;
      if (g.smooth.weights) part.smooth.weights += first;
      const std::int64_t turns = sweep_turns<T>(g.cols, kThreads, kPacks), wanted = (kBlocks + n - 1) / n;
      const bool whole = whole_packs<T>(g.cols, {{part.dx, g.dx_stride}, {part.x, g.x_stride}});
      const auto kernel = whole ? gradient<T, true> : gradient<T, false>;
      kernel<<<dim3(blocks_for(turns < wanted ? turns : wanted, 1), static_cast<unsigned>(n)), kThreads, 0, queue(s)>>>(part);
      launched("cross_entropy_backward");
    });
  }
}

}  // namespace hpcdl::cuda
