#pragma once
// Attention forward by mma.sync (.cu files): a warp owns kM times 16 queries; keys and values pass through shared
// memory kKeys at a time. With two stages the next are loaded while the current ones are multiplied; with one, for which
// more blocks fit, other blocks multiply meanwhile. Source: Dao, "FlashAttention-2", 2023.

#include "hpcdl/ops/attention/mma_tiles.cuh"

namespace hpcdl::cuda::mma {

template <class Kind_, int kWidth_, int kM_, int kKeys_, int kBlocks_, int kStages_ = 2> struct ForwardMma {
  using Kind = Kind_;
  static constexpr int kWidth = kWidth_, kM = kM_, kKeys = kKeys_, kBlocks = kBlocks_, kStages = kStages_,
                       kRows = 64 * kM;
  static constexpr int kBytes = (kRows + kStages * 2 * kKeys) * Tile<Kind, kWidth>::kRowBytes;
};

template <class Shape, class Problem>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks) attention_forward_mma(const __grid_constant__ Problem p) {
  using Kind = typename Shape::Kind;
  // Weights times the scales of values need the range of bf16.
  using ValueKind = std::conditional_t<Problem::kCodes, Bits16<bf16>, Kind>;
  constexpr int kM = Shape::kM, kKeys = Shape::kKeys, kWidth = Shape::kWidth, kRows = Shape::kRows;
  extern __shared__ __align__(16) char memory[];
  const Tile<Kind, kWidth> qs{reinterpret_cast<Element<Kind>*>(memory)}, stages = qs.behind(kRows);
  const Place at(p, p.heads);
  const auto sees = [&](int t) { return static_cast<int>(p.seen(at.sequence, t)); };
  const int queries = static_cast<int>(p.count(at.sequence)), first = static_cast<int>(p.first_row(at.sequence)),
            t0 = (p.tiles - 1 - at.tile) * kRows, last = t0 + kRows < queries ? t0 + kRows : queries;
  if (t0 >= queries) return;  // other sequences have more
  const auto after_hidden = [&](int t) { return static_cast<int>(p.first_of(at.sequence, sees(t))); };
  const int kv = at.head / p.group(), end = sees(last - 1), begin = after_hidden(t0) / kKeys,
            steps = (end + kKeys - 1) / kKeys - begin;
  const int row0 = first_row(16 * kM), whole = sees(t0 + row0),
            most = sees(t0 + row0 + 16 * kM - 1);  // keys that all, or any, of the warp's queries see
  const auto keys_of = [&](int step) { return stages.behind(step % Shape::kStages * 2 * kKeys); };
  const auto values_of = [&](int step) {
    return Tile<ValueKind, kWidth>{reinterpret_cast<Element<ValueKind>*>(keys_of(step).behind(kKeys).data)};
  };
  // Of keys, then of values.
  const auto scales_of = [&](int step) {
    return reinterpret_cast<float*>(stages.behind(Shape::kStages * 2 * kKeys).data) + step % Shape::kStages * 2 * kKeys;
  };
  const auto bring = [&](int turn) {
    const int step = begin + turn, first_key = step * kKeys;
    if constexpr (Problem::kCodes) {
      keys_of(step).template bring_codes<kKeys>(p.k, at.sequence, first_key, end, kv, p.width);
      values_of(step).template bring_codes<kKeys>(p.v, at.sequence, first_key, end, kv, p.width);
      static_assert(2 * kKeys <= kThreads);
      if (const int i = static_cast<int>(threadIdx.x), key = first_key + i % kKeys; i < 2 * kKeys)
        scales_of(step)[i] = key >= end ? 0.0f : (i < kKeys ? p.k : p.v).scale(at.sequence, key, kv);
    } else {
      keys_of(step).template bring<kKeys>(p.k, at.sequence, first_key, end, kv, p.width, p.copies);
      values_of(step).template bring<kKeys>(p.v, at.sequence, first_key, end, kv, p.width, p.copies);
    }
    copies_issued();
  };
  qs.template bring<kRows>(p.q, at.sequence, first + t0, first + queries, at.head, p.width, p.copies);
  const float scale = p.scale * kLog2e;
  RowSoftmax state[kM];
  float sums[kM][kWidth / 2] = {};
  in_stages<Shape::kStages>(steps, bring, [&](int turn) {
    const int step = begin + turn, k0 = step * kKeys;
    if (k0 >= most || (p.hides() && k0 + kKeys <= after_hidden(t0 + row0))) return;
    float s[kM][kKeys / 2] = {};
    dots(s, qs, row0, keys_of(step));
    if constexpr (Problem::kCodes) scale_columns(s, scales_of(step));
    if (p.cap > 0) cap_scores(s, p);
    if (k0 + kKeys > whole || k0 + kKeys > end || (p.hides() && k0 < after_hidden(t0 + row0 + 16 * kM - 1))) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int seen = sees(t0 + row0 + 16 * m + 8 * h + lane_row()), first_key = k0 + lane_column(),
                    limit = (seen < end ? seen : end) - first_key,
                    hidden = static_cast<int>(p.first_of(at.sequence, seen)) - first_key;
#pragma unroll
          for (int j = 0; j < kKeys / 4; ++j)
            if (j / 2 * 8 + j % 2 >= limit || j / 2 * 8 + j % 2 < hidden)
              s[m][j / 2 * 4 + 2 * h + j % 2] = -__builtin_inff();
        }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float shrink[2];
      state[m].update(s[m], scale, shrink);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) sums[m][i] *= shrink[i / 2 % 2];
    }
    if constexpr (Problem::kCodes) scale_columns(s, scales_of(step) + kKeys);
    add_rows(sums, s, values_of(step));
  });
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(state[m].row[h].sum);
      const int t = t0 + row0 + 16 * m + 8 * h + lane_row();
      if (t >= queries) continue;
      put_row<Kind>(p.out, p.out.at(at.sequence, first + t, at.head), sums[m], h, 1 / sum, p.width, p.vectors);
      if (p.lse && lane_column() == 0)
        p.lse[(static_cast<std::int64_t>(at.sequence) * p.heads + at.head) * queries + t] =
            (state[m].row[h].top * scale + log2f(sum)) * 0.6931471805599453f;
    }
}

}  // namespace hpcdl::cuda::mma
