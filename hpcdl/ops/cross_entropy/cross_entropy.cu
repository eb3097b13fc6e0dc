#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/rows.cuh"
#include "hpcdl/cuda/sweep.cuh"
#include "hpcdl/ops/cross_entropy/far_lse.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 512, kPacks = 4;  // packs that a thread has in flight
constexpr int kSumThreads = 1024, kSumAtOnce = 8;
constexpr std::int64_t kShortPacks = 2048;  // of 16 bytes: rows up to this length are kept in registers

/// The weights of rows (1 if absent), and the share of a target that is spread over all classes: smooth.h.
struct Smoothing {
  const float* weights;
  float share;
  __device__ float weight(std::int64_t row) const { return weights ? weights[row] : 1.0f; }
};

/// The loss of a row with log-sum-exp (top + log_sum), including weight and smoothing; `minus_mean` belongs to the row.
/// Adding top + log_sum first would cancel digits.
__device__ inline float row_loss_of(const Smoothing& smooth, std::int64_t row, float top, float log_sum,
                                    float at_target, float minus_mean) {
  const float even = smooth.share > 0 ? smooth.share * (top + minus_mean) : 0.0f;
  return smooth.weight(row) * ((1.0f - smooth.share) * (top - at_target) + even + log_sum);
}

struct Rows {
  float *row_loss, *lse;
  const void* logits;
  std::int64_t stride, rows, cols;
  const std::int32_t* targets;
  Smoothing smooth;

  __device__ void put(std::int64_t row, float loss, float log_sum) const {
    row_loss[row] = loss;
    if (lse) lse[row] = log_sum;
  }
};

/// Rows that a team holds in registers. The mean of a row is computed from (origin - x): with x[0] as origin the
/// differences are small where logits are large.
template <class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kMinBlocks) short_rows(Rows p) {
  constexpr int N = kLanes<T>, K = Team::kPacks;
  __shared__ float tops[kWarp];
  __shared__ float2 sums[kWarp];
  const std::int64_t row = Team::row();
  const bool exists = row < p.rows;
  const std::int32_t target = exists ? p.targets[row] : -1;
  const T* x = static_cast<const T*>(p.logits) + row * p.stride;
  const RowShare<T, Team, kWhole> share(row, target >= 0 ? p.cols : 0);
  Pack<T, N> v[K];
  share.read(v, x, narrow<T>(-__builtin_inff()), share.cols);
  const float at_target = target < 0 ? 0.0f : target < p.cols ? widen(x[target]) : __builtin_nanf("");
  const bool smooth = p.smooth.share > 0 && target >= 0;
  const float origin = smooth ? widen(x[0]) : 0.0f;
  float top = -__builtin_inff();
#pragma unroll
  for (int k = 0; k < K; ++k) top = fmaxf(top, largest(v[k]));
  top = Team::reduce(top, Max{}, tops);
  const float shift = finite(top);
  float sum = 0, distance = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    share.hold(v[k]);
    const auto in = widen(v[k]);
    sum += cuda::sum(map<N>([&](int i) { return fast_exp2((in.v[i] - shift) * kLog2e); }));
    if (!smooth || !share.some(k)) continue;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (kWhole || (i >= share.from(k) && i < share.to(k))) distance += origin - in.v[i];
  }
  Team::sum_both(sum, distance, sums);
  if (!exists || static_cast<int>(threadIdx.x) % Team::kThreads != 0) return;
  if (target < 0) return p.put(row, 0, 0);
  const float log_sum = logf(sum);
  p.put(row, row_loss_of(p.smooth, row, top, log_sum, at_target, distance / static_cast<float>(p.cols) - origin),
        top + log_sum);
}

/// Longer rows, one per block, are read once: each thread keeps its sum relative to its own maximum.
template <class T, int kThreads, bool kWhole, bool kSmooth>
__global__ void __launch_bounds__(kThreads) long_rows(Rows p) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[3][kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits) + row * p.stride;
  const std::int32_t target = p.targets[row];
  if (target < 0) {
    if (threadIdx.x == 0) p.put(row, 0, 0);
    return;
  }
  SumOfExp all;
  const float origin = kSmooth ? widen(x[0]) : 0.0f;
  float distance = 0;
  sweep<kThreads, kPacks, kWhole>(
      x, p.cols, narrow<T>(-__builtin_inff()), row_lead<T>(row, p.cols), [&](std::int64_t col, const auto& v) {
        all.add(v);
        if constexpr (kSmooth) {
#pragma unroll
          for (int k = 0; k < kPacks; ++k) {
            const std::int64_t at = col + k * kThreads * N, left = p.cols - at;
            if (left <= 0) break;
            const int from = !kWhole && at < 0 ? static_cast<int>(-at) : 0, to = static_cast<int>(left < N ? left : N);
            const auto in = widen(v[k]);
            float part = 0;
#pragma unroll
            for (int i = 0; i < N; ++i)
              if (kWhole || (i >= from && i < to)) part += origin - in.v[i];
            distance += part;
          }
        }
      });
  all.template over_block<kThreads>(memory);
  if constexpr (kSmooth)
    distance = block_reduce<kThreads>(distance, Sum{}, memory[2]) / static_cast<float>(p.cols) - origin;
  if (threadIdx.x != 0) return;
  const float log_sum = logf(all.sum), at_target = target < p.cols ? widen(x[target]) : __builtin_nanf("");
  p.put(row, row_loss_of(p.smooth, row, all.top, log_sum, at_target, distance), all.top + log_sum);
}

/// A fixed summation tree, in double.
__global__ void __launch_bounds__(kSumThreads)
    sum_rows(float* loss, float* count, const float* row_loss, const std::int32_t* targets, const float* weights,
             std::int64_t n) {
  __shared__ double losses[kSumThreads], counts[kSumThreads];
  double sum = 0, valid = 0;
  for (std::int64_t first = threadIdx.x; first < n; first += kSumThreads * kSumAtOnce) {
    float value[kSumAtOnce], weight[kSumAtOnce];
#pragma unroll
    for (int i = 0; i < kSumAtOnce; ++i) {
      const std::int64_t r = first + i * kSumThreads;
      const bool counted = r < n && targets[r] >= 0;
      value[i] = r < n ? row_loss[r] : 0.0f;
      weight[i] = counted && weights ? weights[r] : 1.0f;
      if (!counted) value[i] = weight[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < kSumAtOnce; ++i) sum += static_cast<double>(value[i]), valid += static_cast<double>(weight[i]);
  }
  losses[threadIdx.x] = sum, counts[threadIdx.x] = valid;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      losses[threadIdx.x] += losses[threadIdx.x + half], counts[threadIdx.x] += counts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(losses[0]), *count = static_cast<float>(counts[0]);
}

struct Gradient {
  void* dx;
  const void* x;
  std::int64_t dx_stride, x_stride, rows, cols;
  const std::int32_t* targets;
  const float *lse, *dloss;
  Smoothing smooth;
  bool accumulate;
};

/// The values shared by the elements of one row.
struct RowGradient {
  std::int32_t target;
  float scale, lse, rest, even, own;

  __device__ RowGradient(const Gradient& g, std::int64_t row)
      : target(g.targets[row]),
        scale(target >= 0 && g.dloss ? g.smooth.weight(row) * *g.dloss : 0.0f),
        lse(g.lse[row]),
        rest(0),
        even(g.smooth.share / static_cast<float>(g.cols)),
        own(1.0f - g.smooth.share) {}
  __device__ bool is_far() const { return is_far_lse(lse); }
  __device__ void take_apart(float top, float sum) { lse = top, rest = logf(sum); }
  /// The gradient of the N elements at column `at`.
  template <int N> __device__ Lanes<N> operator()(const Lanes<N>& x, std::int64_t at) const {
    if (target < 0) return Lanes<N>(0.0f);  // regardless of x
    const int hit = static_cast<int>(target - at);
    return map<N>(
        [&](int i) { return (fast_exp2(((x.v[i] - lse) - rest) * kLog2e) - even - (i == hit ? own : 0.0f)) * scale; });
  }
};

template <class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kMinBlocks) short_gradient(Gradient g) {
  constexpr int N = kLanes<T>, K = Team::kPacks;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = Team::row();
  const bool exists = row < g.rows;
  const T* x = static_cast<const T*>(g.x) + row * g.x_stride;
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride;
  const RowShare<T, Team, kWhole> share(row, exists ? g.cols : 0);
  Pack<T, N> v[K];
  share.read(v, x);
  RowGradient of_row(g, exists ? row : 0);
  // Teams within a warp reduce together; a team of several warps is a block with one row.
  if (Team::kThreads < kWarp ? __any_sync(0xffffffffu, of_row.is_far()) : of_row.is_far()) {
    const auto fold = [&](float from, auto&& f) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (!share.some(k)) break;
        const auto in = widen(v[k]);
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (kWhole || (i >= share.from(k) && i < share.to(k))) from = f(from, in.v[i]);
      }
      return from;
    };
    const float top =
        Team::reduce(fold(-__builtin_inff(), [](float a, float b) { return fmaxf(a, b); }), Max{}, memory[0]);
    const float sum = Team::reduce(
        fold(0.0f, [&](float a, float b) { return a + fast_exp2((b - finite(top)) * kLog2e); }), Sum{}, memory[1]);
    if (of_row.is_far()) of_row.take_apart(top, sum);
  }
  if (!exists) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!share.some(k)) break;
    share.write(dx, k, of_row(widen(v[k]), share.col(k)), g.accumulate);
  }
}

/// Blocks (part of the row, row); gridDim.x blocks share a row.
template <class T, bool kWhole> __global__ void __launch_bounds__(kThreads) long_gradient(Gradient g) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.y;
  const T* x = static_cast<const T*>(g.x) + row * g.x_stride;
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride;
  RowGradient of_row(g, row);
  const bool far = of_row.is_far();
  if (far) {
    if (blockIdx.x > 0) return;  // dx may alias x: the block that reads the whole row also writes it
    __shared__ float memory[2][kWarp];
    SumOfExp all;
    sweep<kThreads, kPacks, kWhole>(x, g.cols, narrow<T>(-__builtin_inff()), row_lead<T>(row, g.cols),
                                    [&](std::int64_t, const auto& v) { all.add(v); });
    all.template over_block<kThreads>(memory);
    of_row.take_apart(all.top, all.sum);
  }
  const auto body = [&](std::int64_t col, const auto& v) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = col + k * kThreads * N, left = g.cols - at;
      if (left <= 0) break;
      const int from = !kWhole && at < 0 ? static_cast<int>(-at) : 0, to = static_cast<int>(left < N ? left : N);
      auto d = of_row(widen(v[k]), at);
      if (g.accumulate) d = d + widen(read<N>(static_cast<const T*>(dx + at), from, to, T{}));
      if constexpr (kWhole) write_aligned(dx + at, pack<T>(d));
      else write(dx + at, pack<T>(d), from, to);
    }
  };
  sweep<kThreads, kPacks, kWhole>(x, g.cols, T{}, row_lead<T>(row, g.cols), body, far ? 0 : blockIdx.x,
                                  far ? 1 : gridDim.x);
}

/// Calls f with the team that holds a row in registers; false for rows longer than kShortPacks.
template <class T, class F> bool with_short_team(std::int64_t cols, F&& f) {
  const std::int64_t packs = cols / kLanes<T> + (cols % kLanes<T> == 0 ? 0 : 2);  // a row may begin inside a pack
  if (packs <= 8) f.template operator()<Team<8, 1, 32>>();
  else if (packs <= 128) f.template operator()<Team<32, 4, 8>>();
  else if (packs <= 256) f.template operator()<Team<64, 4>>();
  else if (packs <= 512) f.template operator()<Team<128, 4>>();
  else if (packs <= kShortPacks) f.template operator()<Team<512, 4>>();
  return packs <= kShortPacks;
}

Smoothing smoothing_of(View weights, float share) { return {weights ? weights.ptr<float>() : nullptr, share}; }

}  // namespace

void cross_entropy(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, Tensor row_loss,
                   View weights, float smoothing) {
  const Rows p{row_loss.ptr<float>(),
               lse ? lse.ptr<float>() : nullptr,
               logits.data(),
               logits.row_stride(),
               logits.rows(),
               logits.cols(),
               targets.ptr<std::int32_t>(),
               smoothing_of(weights, smoothing)};
  if (p.rows > 0) {
    visit_dtype(logits.dtype(), [&]<class T>() {
      const bool whole = whole_packs<T>(p.cols, {{p.logits, p.stride}});
      if (with_short_team<T>(p.cols, [&]<class Team>() {
            launch_rows<Team>(s, whole ? short_rows<T, Team, true> : short_rows<T, Team, false>, p.rows, p,
                              "cross_entropy");
          }))
        return;
      const auto kernel = smoothing > 0 ? whole ? long_rows<T, 512, true, true> : long_rows<T, 512, false, true>
                          : whole ? long_rows<T, 512, true, false>
                                        : long_rows<T, 512, false, false>;
      kernel<<<blocks_for(p.rows, 1), 512, 0, queue(s)>>>(p);
    });
    launched("cross_entropy");
  }
  cross_entropy_sum(s, loss, count, row_loss, targets, weights);
}

void cross_entropy_sum(Stream& s, Tensor loss, Tensor count, View row_loss, View targets, View weights) {
  sum_rows<<<1, kSumThreads, 0, queue(s)>>>(loss.ptr<float>(), count.ptr<float>(), row_loss.ptr<float>(),
                                            targets.ptr<std::int32_t>(), smoothing_of(weights, 0).weights,
                                            row_loss.size());
  launched("cross_entropy.sum");
}

void cross_entropy_backward(Stream& s, Grad dlogits, View logits, View targets, View lse, View dloss, View weights,
                            float smoothing) {
  const Gradient g{dlogits.data(),
                   logits.data(),
                   dlogits.row_stride(),
                   logits.row_stride(),
                   logits.rows(),
                   logits.cols(),
                   targets.ptr<std::int32_t>(),
                   lse.ptr<float>(),
                   dloss ? dloss.ptr<float>() : nullptr,
                   smoothing_of(weights, smoothing),
                   dlogits.accumulate()};
  if (g.rows == 0) return;
  visit_dtype(logits.dtype(), [&]<class T>() {
    const bool whole = whole_packs<T>(g.cols, {{g.dx, g.dx_stride}, {g.x, g.x_stride}});
    if (with_short_team<T>(g.cols, [&]<class Team>() {
          launch_rows<Team>(s, whole ? short_gradient<T, Team, true> : short_gradient<T, Team, false>, g.rows, g,
                            "cross_entropy_backward");
        }))
      return;
    constexpr std::int64_t kBlocks = 2048,
                           kMostRows = 65535;  // enough to load any GPU evenly; the limit of a grid's y dimension
    for (std::int64_t first = 0; first < g.rows; first += kMostRows) {
      const std::int64_t n = g.rows - first < kMostRows ? g.rows - first : kMostRows;
      Gradient part = g;
      part.dx = static_cast<T*>(g.dx) + first * g.dx_stride;
      part.x = static_cast<const T*>(g.x) + first * g.x_stride;
      part.targets += first, part.lse += first;
      if (g.smooth.weights) part.smooth.weights += first;
      const std::int64_t turns = sweep_turns<T>(g.cols, kThreads, kPacks), wanted = (kBlocks + n - 1) / n;
      const auto kernel = whole ? long_gradient<T, true> : long_gradient<T, false>;
      kernel<<<dim3(blocks_for(turns < wanted ? turns : wanted, 1), static_cast<unsigned>(n)), kThreads, 0, queue(s)>>>(
          part);
      launched("cross_entropy_backward");
    }
  });
}

}  // namespace hpcdl::cuda
