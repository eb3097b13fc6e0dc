#include "hpcdl/ops/softmax/softmax.h"

#include "hpcdl/ops/softmax/causal_rows.cuh"
#include "hpcdl/ops/softmax/long_rows.cuh"

// A row is read once: into the registers of a team (cuda/rows.cuh), where the blocks of a cluster exchange their
// (maximum, sum) through distributed shared memory; or, if long rows consist of whole packs, into the shared memory of
// a cluster (long_rows.h). Causal rows have a separate kernel (causal_rows.h). Longer rows, and long rows on GPUs
// without clusters, are read twice.

namespace hpcdl::cuda {
namespace {

namespace cg = cooperative_groups;

/// Combines this thread's part of the sum over the row with those of all blocks of the cluster: `sum` relative to `top`
/// becomes the sum relative to the largest top, and the factor from the one to the other is returned. No block may exit
/// before finish(). Tops are multiplied by `rate` only after one is subtracted from the other: the difference fits a
/// float where the products may not.
template <int kBlocks> struct Cluster {
  __device__ static float join(float2* shared, float top, float rate, float& sum) {
    float factor = 1;
#if HPCDL_CLUSTERS
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) *shared = {top, sum};
    cluster.sync();
    float2 part[kBlocks];
    float all = -kInf;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) part[b] = *cluster.map_shared_rank(shared, b), all = fmaxf(all, part[b].x);
    cluster.barrier_arrive();
    all = finite(all);
    sum = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      sum += part[b].x == -kInf ? part[b].y : part[b].y * exp2f((part[b].x - all) * rate);
    factor = top == -kInf ? 1.0f : exp2f((top - all) * rate);
#endif
    return factor;
  }
  __device__ static void finish() {
#if HPCDL_CLUSTERS
    cg::this_cluster().barrier_wait();
#endif
  }
};

template <class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kMinBlocks) forward(SoftmaxProblem p) {
  if constexpr (!Team::kCompiled) return;
  constexpr int N = kLanes<T>, K = Team::kPacks;
  /// Terms are kept if registers allow it; otherwise they are computed twice.
  constexpr bool kKeep = K * N <= 32;
  __shared__ float memory[2][kWarp];
  __shared__ float2 shared;
  const std::int64_t row = Team::row();
  const bool exists = row < p.rows;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const RowShare<T, Team, kWhole> share(row, exists ? p.cols : 0);
  const auto exponent = SoftmaxExponent::of<T>(p.scale);

  Pack<T, N> in[K];
  share.read(in, x, narrow<T>(p.scale < 0 ? kInf : -kInf), exists ? static_cast<int>(p.seen(row)) : 0,
             share.inside(row, p.rows, p.cols, p.x_stride));
  float top = -kInf;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    exponent.negate(in[k]);
    top = fmaxf(top, largest(in[k]));
  }
  top = Team::reduce(top, Max{}, memory[0]);
  const float shift = finite(top);
  Lanes<N> terms[kKeep ? K : 1];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    share.hold(in[k]);
    const auto e = exponent(widen(in[k]), shift);
    if constexpr (kKeep) terms[k] = e;
    sum += cuda::sum(e);
  }
  sum = Team::reduce(sum, Sum{}, memory[1]);
  float factor = 1;
  if constexpr (Team::kBlocks > 1) factor = Cluster<Team::kBlocks>::join(&shared, top, exponent.factor, sum);
  const Lanes<N> inverse(factor / sum);
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!share.some(k)) break;
    if constexpr (!kKeep) share.hold(in[k]);
    auto out = pack<T>((kKeep ? terms[kKeep ? k : 0] : exponent(widen(in[k]), shift)) * inverse);
    hide(out, static_cast<int>(p.seen(row)) - share.col(k));
    share.write(y, k, out);
  }
  if constexpr (Team::kBlocks > 1) Cluster<Team::kBlocks>::finish();
}

/// Rows that no team can hold: first the sum relative to the largest element so far, then the row again.
template <class T> __global__ void __launch_bounds__(1024) forward_in_two_sweeps(SoftmaxProblem p) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = blockIdx.x, n = p.seen(row);
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  const auto exponent = SoftmaxExponent::of<T>(p.scale);
  const auto input = [&](std::int64_t at) {
    const int left = static_cast<int>(n - at < N ? n - at : N);
    auto v = read<N>(x + at, 0, left, narrow<T>(p.scale < 0 ? kInf : -kInf));
    exponent.negate(v);
    return widen(v);
  };
  float top = -kInf, sum = 0;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < n; at += kThreads * N) {
    const auto v = input(at);
    const float higher = fmaxf(top, largest(v)), shift = finite(higher);
    sum = sum * (top == -kInf ? 1.0f : exp2f((top - shift) * exponent.factor)) + cuda::sum(exponent(v, shift));
    top = higher;
  }
  const float all = finite(block_reduce<kThreads>(top, Max{}, memory[0]));
  sum = block_reduce<kThreads>(top == -kInf ? sum : sum * exp2f((top - all) * exponent.factor), Sum{}, memory[1]);
  const Lanes<N> inverse(1.0f / sum);
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < p.cols; at += kThreads * N) {
    auto out = pack<T>(exponent(input(at), all) * inverse);
    hide(out, static_cast<int>(n - at < N ? n - at : N));
    write(y + at, out, 0, static_cast<int>(p.cols - at < N ? p.cols - at : N));
  }
}

struct Gradient {
  void* dx;
  const void *y, *dy;
  std::int64_t rows, cols, dx_stride, y_stride, dy_stride;
  std::int64_t period;  // as in SoftmaxProblem
  float scale;
  bool accumulate;
  __device__ std::int64_t seen(std::int64_t row) const { return columns_seen(row, cols, period); }
};

/// Gradients of columns that a row does not see are 0, even if the other gradients are NaN.
template <int N> __device__ void hide(Lanes<N>& v, int seen) {
  if (seen >= N) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= seen) v.v[i] = 0;
}

/// dx = scale y (dy - sum(y dy)).
template <class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, Team::kMinBlocks) backward(Gradient g) {
  if constexpr (!Team::kCompiled) return;
  constexpr int N = kLanes<T>, K = Team::kPacks;
  __shared__ float memory[kWarp];
  __shared__ float2 shared;
  const std::int64_t row = Team::row();
  const T* y = static_cast<const T*>(g.y) + row * g.y_stride;
  const T* dy = static_cast<const T*>(g.dy) + row * g.dy_stride;
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride;
  const bool exists = row < g.rows;
  const RowShare<T, Team, kWhole> share(row, exists ? g.cols : 0);
  const int seen = exists ? static_cast<int>(g.seen(row)) : 0;
  Pack<T, N> a[K], b[K];
  share.read(a, y, T{}, seen);
  share.read(b, dy, T{}, seen);
  float dot = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    share.hold(a[k]), share.hold(b[k]);
    dot += sum(widen(a[k]) * widen(b[k]));
  }
  dot = Team::reduce(dot, Sum{}, memory);
  if constexpr (Team::kBlocks > 1) Cluster<Team::kBlocks>::join(&shared, 0.0f, 1.0f, dot);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!share.some(k)) break;
    share.hold(a[k]), share.hold(b[k]);
    auto v = Lanes<N>(g.scale) * widen(a[k]) * (widen(b[k]) - Lanes<N>(dot));
    if (g.period > 0) {
      if (g.accumulate && share.col(k) >= seen) break;
      hide(v, seen - share.col(k));
    }
    share.write(dx, k, v, g.accumulate);
  }
  if constexpr (Team::kBlocks > 1) Cluster<Team::kBlocks>::finish();
}

template <class T> __global__ void __launch_bounds__(1024) backward_in_two_sweeps(Gradient g) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  __shared__ float memory[kWarp];
  const std::int64_t row = blockIdx.x;
  const T* y = static_cast<const T*>(g.y) + row * g.y_stride;
  const T* dy = static_cast<const T*>(g.dy) + row * g.dy_stride;
  T* dx = static_cast<T*>(g.dx) + row * g.dx_stride;
  const std::int64_t seen = g.seen(row);
  const auto count = [&](std::int64_t at) { return static_cast<int>(seen - at < N ? seen - at : N); };
  float dot = 0;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < seen; at += kThreads * N)
    dot += sum(load<N>(y + at, count(at)) * load<N>(dy + at, count(at)));
  dot = block_reduce<kThreads>(dot, Sum{}, memory);
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < (g.accumulate ? seen : g.cols); at += kThreads * N) {
    auto v = Lanes<N>(g.scale) * load<N>(y + at, count(at)) * (load<N>(dy + at, count(at)) - Lanes<N>(dot));
    hide(v, count(at));
    if (g.accumulate) v = v + load<N>(static_cast<const T*>(dx + at), count(at));
    const std::int64_t end = g.accumulate ? seen : g.cols;
    store(dx + at, v, static_cast<int>(end - at < N ? end - at : N));
  }
}

}  // namespace

void softmax(Stream& s, Tensor y, View x, const Softmax::Args& a) {
  if (y.size() == 0) return;
  const SoftmaxProblem p{y.data(), x.data(), x.rows(), x.cols(), y.row_stride(), x.row_stride(), a.causal ? x[-2] : 0,
                         a.scale};
  visit_dtype(x.dtype(), [&]<class T>() {
    const bool whole = whole_packs<T>(p.cols, {{p.y, p.y_stride}, {p.x, p.x_stride}});
    const std::int64_t packs = p.cols % kLanes<T> == 0 && p.period == 0 ? p.cols / kLanes<T> : 0;  // whole ones
    if (packs > (sizeof(T) == 2 ? 4096 : 8192) && has_sm90a(s) &&
        with_long_rows(packs, [&]<class Shape>() { run_long_rows<T, Shape>(s, p, whole, "softmax"); }))
      return;
    if (p.cols % kLanes<T> != 0 && p.cols > 1 && p.period == 0) {
      const auto run = [&]<class Team>() { launch_rows<Team>(s, forward<T, Team, false>, p.rows, p, "softmax"); };
      if (with_odd_team<T, 16>(s, p.cols, run)) return;
    }
    const bool done = with_team<T, 4, 16>(s, p.cols, [&]<class Team>() {
      if constexpr (Team::kPacks <= kMostCausalPacks)
        if (p.period > 0)
          return launch_rows<Team>(s, whole ? forward_causal<T, Team, true> : forward_causal<T, Team, false>, p.rows, p,
                                   "softmax");
      launch_rows<Team>(s, whole ? forward<T, Team, true> : forward<T, Team, false>, p.rows, p, "softmax");
    });
    if (done) return;
    forward_in_two_sweeps<T><<<blocks_for(p.rows, 1), 1024, 0, queue(s)>>>(p);
    launched("softmax");
  });
}

void softmax_backward(Stream& s, Grad dx, View y, View dy, const Softmax::Args& a) {
  if (dx.size() == 0) return;
  const Gradient g{dx.data(),      y.data(),        dy.data(),
                   y.rows(),       y.cols(),        dx.row_stride(),
                   y.row_stride(), dy.row_stride(), a.causal ? y[-2] : 0,
                   a.scale,        dx.accumulate()};
  visit_dtype(y.dtype(), [&]<class T>() {
    const bool whole = whole_packs<T>(g.cols, {{g.dx, g.dx_stride}, {g.y, g.y_stride}, {g.dy, g.dy_stride}});
    const bool done = with_team<T, 2, 8>(s, g.cols, [&]<class Team>() {
      launch_rows<Team>(s, whole ? backward<T, Team, true> : backward<T, Team, false>, g.rows, g, "softmax_backward");
    });
    if (done) return;
    backward_in_two_sweeps<T><<<blocks_for(g.rows, 1), 1024, 0, queue(s)>>>(g);
    launched("softmax_backward");
  });
}

}  // namespace hpcdl::cuda
