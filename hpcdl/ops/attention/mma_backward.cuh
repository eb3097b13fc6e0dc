#pragma once
// Attention backward by mma.sync (.cu files): p = exp(scale q k^T - lse) and ds = p (dout v^T - delta) are computed
// twice, by warps that own queries and sum dq, and by warps that own keys and sum dk and dv. Nothing is added
// atomically, so results are reproducible bit for bit.

#include "hpcdl/ops/attention/mma_tiles.cuh"

namespace hpcdl::cuda::mma {

/// Which gradients of keys and values a kernel sums: for heads wider than 128 each of them alone fills the registers.
enum class KeyGradients : unsigned char { both, keys, values };

/// kM times 16 rows per warp; kOther rows of the other side at a time, in kStages stages.
template <class Kind_, int kWidth_, int kM_, int kOther_, int kStages_, int kBlocks_> struct BackwardMma {
  using Kind = Kind_;
  static constexpr int kWidth = kWidth_, kM = kM_, kOther = kOther_, kStages = kStages_, kBlocks = kBlocks_,
                       kRows = 64 * kM;
  static constexpr int kTileBytes = (2 * kRows + kStages * 2 * kOther) * Tile<Kind, kWidth>::kRowBytes;
  static constexpr int kBytes = kTileBytes + kStages * 3 * kOther * 4;
};

/// Makes the scores of far rows relative to the largest of their row, top(m, j).
template <int kM, int kCount> __device__ void subtract_tops(float (&s)[kM][kCount], auto&& top) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[m][i] = below_top(s[m][i], top(m, i));
}

/// dout v^T - delta, times the derivative of the capped scores s.
template <int kM, int kCount>
__device__ void apply_slopes(const float (&s)[kM][kCount], float (&dp)[kM][kCount], const MmaProblem& p, auto&& delta) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kCount; ++i) dp[m][i] = (dp[m][i] - delta(m, i)) * p.slope(s[m][i]) + delta(m, i);
}

/// Replaces scores and dout v^T by p and ds. lse(m, j): in units of log2; seen(m, j): whether the query sees the key,
/// called only if `masked`.
template <int kM, int kCount>
__device__ void gradients(float (&s)[kM][kCount], float (&dp)[kM][kCount], float scale, bool masked, auto&& lse,
                          auto&& delta, auto&& seen) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float e = exp2_fast(::fmaf(s[m][i], scale, -lse(m, i)));
      const bool there = !masked || seen(m, i);
      s[m][i] = there ? e : 0.0f, dp[m][i] = there ? e * (dp[m][i] - delta(m, i)) : 0.0f;
    }
}

/// Which of a lane's rows and columns result i of dots() belongs to.
__device__ constexpr int half_of(int i) { return i / 2 % 2; }
__device__ constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

template <class Shape, class Problem>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks)
    attention_query_gradient_mma(const __grid_constant__ Problem p) {
  using Kind = typename Shape::Kind;
  constexpr int kM = Shape::kM, kKeys = Shape::kOther, kWidth = Shape::kWidth, kRows = Shape::kRows;
  extern __shared__ __align__(16) char memory[];
  const Tile<Kind, kWidth> qs{reinterpret_cast<Element<Kind>*>(memory)}, ds = qs.behind(kRows),
                                                                         stages = ds.behind(kRows);
  const Place at(p, p.heads);
  const auto first_key = [&](int t) { return p.first_of(at.sequence, p.sees(t)); };
  const int queries = static_cast<int>(p.queries), t0 = (p.tiles - 1 - at.tile) * kRows,
            last = t0 + kRows < queries ? t0 + kRows : queries;
  const int kv = at.head / p.group(), end = p.sees(last - 1), row0 = first_row(16 * kM),
            begin = static_cast<int>(first_key(t0)) / kKeys;
  const int whole = p.sees(t0 + row0),
            most = p.sees(t0 + row0 + 16 * kM - 1);  // keys that all, or any, of the warp's queries see
  float lse[kM][2], delta[kM][2];
  bool far = false;
  const float* const tops = p.rows.tops + (static_cast<std::int64_t>(at.sequence) * p.heads + at.head) * queries;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = t0 + row0 + 16 * m + 8 * h + lane_row();
      const std::int64_t i = (static_cast<std::int64_t>(at.sequence) * p.heads + at.head) * queries + t;
      lse[m][h] = t < queries ? p.rows.logs[i] : 0.0f, delta[m][h] = t < queries ? p.rows.deltas[i] : 0.0f;
      far |= t < queries && tops[t] != 0;
    }
  far = __any_sync(~0u, far);
  qs.template bring<kRows>(p.q, at.sequence, t0, queries, at.head, p.width, p.copies);
  ds.template bring<kRows>(p.dout, at.sequence, t0, queries, at.head, p.width, p.copies);
  const float scale = p.scale * kLog2e;
  float sums[kM][kWidth / 2] = {};
  const auto stage = [&](int step) { return stages.behind(step % Shape::kStages * 2 * kKeys); };
  const auto bring = [&](int turn) {
    const int step = begin + turn;
    stage(step).template bring<kKeys>(p.k, at.sequence, step * kKeys, end, kv, p.width, p.copies);
    stage(step).behind(kKeys).template bring<kKeys>(p.v, at.sequence, step * kKeys, end, kv, p.width, p.copies);
    copies_issued();
  };
  in_stages<Shape::kStages>((end + kKeys - 1) / kKeys - begin, bring, [&](int turn) {
    const int step = begin + turn, k0 = step * kKeys;
    if (k0 >= most || (p.hides() && k0 + kKeys <= first_key(t0 + row0))) return;
    float s[kM][kKeys / 2] = {}, dp[kM][kKeys / 2] = {};
    dots(s, qs, row0, stage(step));
    dots(dp, ds, row0, stage(step).behind(kKeys));
    const auto delta_of = [&](int m, int i) { return delta[m][half_of(i)]; };
    if (p.cap > 0) cap_scores(s, p), apply_slopes(s, dp, p, delta_of);
    if (far)
      subtract_tops(s, [&](int m, int i) {
        const int t = t0 + row0 + 16 * m + 8 * half_of(i) + lane_row();
        return t < queries ? tops[t] : 0.0f;
      });
    const auto sees = [&](int m, int i) {
      const int key = k0 + lane_column() + column_of(i),
                seen = p.sees(t0 + row0 + 16 * m + 8 * half_of(i) + lane_row());
      return key < end && key < seen && key >= p.first_of(at.sequence, seen);
    };
    const bool cut = p.hides() && k0 < first_key(t0 + row0 + 16 * kM - 1);
    gradients(
        s, dp, scale, k0 + kKeys > whole || k0 + kKeys > end || cut, [&](int m, int i) { return lse[m][half_of(i)]; },
        delta_of, sees);
    add_rows(sums, dp, stage(step));
  });
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (const int t = t0 + row0 + 16 * m + 8 * h + lane_row(); t < queries)
        put_row<Kind>(p.dq, p.dq.at(at.sequence, t, at.head), sums[m], h, p.scale, p.width, p.vectors);
}

/// Processes the query heads of a group one after the other.
template <class Shape, class Problem, KeyGradients kGradients = KeyGradients::both>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks)
    attention_key_gradient_mma(const __grid_constant__ Problem p) {
  using Kind = typename Shape::Kind;
  constexpr bool kKeys = kGradients != KeyGradients::values, kValues = kGradients != KeyGradients::keys;
  constexpr int kM = Shape::kM, kQueries = Shape::kOther, kWidth = Shape::kWidth, kRows = Shape::kRows;
  extern __shared__ __align__(16) char memory[];
  const Tile<Kind, kWidth> ks{reinterpret_cast<Element<Kind>*>(memory)}, vs = ks.behind(kRows),
                                                                         stages = vs.behind(kRows);
  float* const statistics = reinterpret_cast<float*>(memory + Shape::kTileBytes);
  const Place at(p, p.kv_heads);
  const auto last_query = [&](int key) { return static_cast<int>(p.last_query(at.sequence, key)); };
  const int queries = static_cast<int>(p.queries), keys = static_cast<int>(p.capacity), offset = keys - queries,
            k0 = at.tile * kRows, row0 = first_row(16 * kM);
  // Steps before `first` see none of these keys.
  const int first = p.causal && k0 > offset ? (k0 - offset) / kQueries : 0,
            each = (last_query(k0 + kRows - 1) + kQueries) / kQueries - first;
  ks.template bring<kRows>(p.k, at.sequence, k0, keys, at.head, p.width, p.copies);
  if constexpr (kKeys) vs.template bring<kRows>(p.v, at.sequence, k0, keys, at.head, p.width, p.copies);
  const float scale = p.scale * kLog2e;
  float dk[kM][kKeys ? kWidth / 2 : 1] = {}, dv[kM][kValues ? kWidth / 2 : 1] = {};
  const auto stage = [&](int step) { return stages.behind(step % Shape::kStages * 2 * kQueries); };
  const auto lses = [&](int step) { return statistics + step % Shape::kStages * 3 * kQueries; };
  const auto bring = [&](int step) {
    const int h = at.head * p.group() + step / each, t0 = (first + step % each) * kQueries;
    stage(step).template bring<kQueries>(p.q, at.sequence, t0, queries, h, p.width, p.copies);
    stage(step).behind(kQueries).template bring<kQueries>(p.dout, at.sequence, t0, queries, h, p.width, p.copies);
    copies_issued();
    if (const int t = t0 + static_cast<int>(threadIdx.x); threadIdx.x < kQueries) {
      const std::int64_t i = (static_cast<std::int64_t>(at.sequence) * p.heads + h) * queries + t;
      lses(step)[threadIdx.x] = t < queries ? p.rows.logs[i] : 0.0f;
      lses(step)[kQueries + threadIdx.x] = t < queries ? p.rows.deltas[i] : 0.0f;
      lses(step)[2 * kQueries + threadIdx.x] = t < queries ? p.rows.tops[i] : 0.0f;
    }
  };
  in_stages<Shape::kStages>(each * p.group(), bring, [&](int step) {
    const int t0 = (first + step % each) * kQueries, key = k0 + row0;
    if (p.causal && key > t0 + kQueries - 1 + offset) return;
    if (p.hides() && t0 > last_query(key + 16 * kM - 1)) return;
    const float* const of = lses(step) + lane_column();
    bool far = false;
#pragma unroll
    for (int i = 0; i < kQueries; i += 32)
      far |= lses(step)[2 * kQueries + (i + static_cast<int>(threadIdx.x) % 32) % kQueries] != 0;
    far = __any_sync(~0u, far);
    float s[kM][kQueries / 2] = {}, dp[kM][kQueries / 2] = {};
    dots(s, ks, row0, stage(step));
    if constexpr (kKeys) dots(dp, vs, row0, stage(step).behind(kQueries));
    const auto delta_of = [&](int, int i) { return of[kQueries + column_of(i)]; };
    if (p.cap > 0) {
      cap_scores(s, p);
      if constexpr (kKeys) apply_slopes(s, dp, p, delta_of);
    }
    if (far) subtract_tops(s, [&](int, int i) { return of[2 * kQueries + column_of(i)]; });
    const bool cut = p.hides() && last_query(key) < t0 + kQueries - 1;
    gradients(
        s, dp, scale, cut || (p.causal && key + 16 * kM - 1 > t0 + offset),
        [&](int, int i) { return of[column_of(i)]; }, delta_of,
        [&](int m, int i) {
          const int mine = key + 16 * m + 8 * half_of(i) + lane_row(), t = t0 + lane_column() + column_of(i);
          return mine <= t + offset && t <= last_query(mine);
        });
    if constexpr (kValues) add_rows(dv, s, stage(step).behind(kQueries));
    if constexpr (kKeys) add_rows(dk, dp, stage(step));
  });
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = k0 + row0 + 16 * m + 8 * h + lane_row();
      if (row >= keys) continue;
      if constexpr (kKeys)
        if (p.dk.data) put_row<Kind>(p.dk, p.dk.at(at.sequence, row, at.head), dk[m], h, p.scale, p.width, p.vectors);
      if constexpr (kValues)
        if (p.dv.data) put_row<Kind>(p.dv, p.dv.at(at.sequence, row, at.head), dv[m], h, 1, p.width, p.vectors);
    }
}

}  // namespace hpcdl::cuda::mma
