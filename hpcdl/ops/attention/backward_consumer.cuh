#pragma once
// Attention backward on Hopper's tensor cores (.cu files): how a consumer warpgroup processes the tiles it receives.
// Heads of 64 finish one step before the next, as here; heads of 128 overlap steps (backward_pipelined.h).

#include "hpcdl/ops/attention/backward_work.cuh"
#include "hpcdl/ops/attention/far_rows.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda {

#if HPCDL_SM90A

/// Transposes registers v[0..3] across four neighbouring threads: thread i receives number i of all four.
__device__ inline void quad_transpose(unsigned (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    if (odd) v[i] = got;
    else v[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    if (high) v[i] = got;
    else v[i + 2] = got;
  }
}
/// Stores scale * an accumulator of 64 rows, the first of which is `token`, to columns [column, column + 2 kCount) of a
/// gradient of `tokens` x `width`.
template <class T, int kCount>
__device__ void put_gradient(const Heads& to, const float (&d)[kCount], float scale, int sequence, int head, int token,
                             int column, int tokens, int width) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  if (!to.data) return;
  T* data = static_cast<T*>(to.data) + sequence * to.batch + head * to.head + column;
#pragma unroll
  for (int c = 0; c < kCount / 16; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        v[j] = pack_pair<T>(d[16 * c + 4 * j + 2 * h] * scale, d[16 * c + 4 * j + 2 * h + 1] * scale);
      quad_transpose(v);
      const int at = token + row + 8 * h;
      if (at >= tokens || column + 32 * c + lane % 4 * 8 >= width) continue;
      auto* place = reinterpret_cast<uint4*>(data + at * to.token + 32 * c + lane % 4 * 8);
      if (to.accumulate) {
        const uint4 old = *place;
        const unsigned o[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          v[j] = pack_pair<T>(unpack_low<T>(v[j]) + unpack_low<T>(o[j]), unpack_high<T>(v[j]) + unpack_high<T>(o[j]));
      }
      *place = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/// The same in f32 to the share of `to` whose first token is `token`, if `to` has memory.
template <int kCount>
__device__ void put_share(const Heads& to, float* share, const float (&d)[kCount], float scale, int token,
                          const BackwardProblem& p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  if (!to.data) return;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int at = row + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
    if (token + at < p.keys && column < p.width)
      *reinterpret_cast<float2*>(share + static_cast<std::int64_t>(at) * p.kv_heads * p.width + column) = {
          d[2 * i] * scale, d[2 * i + 1] * scale};
  }
}

template <class T, class Shape> struct BackwardConsumer {
  static constexpr int kScores = Shape::kQueries / 2, kGrad = Shape::kWidth / 2;
  const BackwardMemory<Shape>& m;
  const BackwardProblem& p;
  int group;
  Ring<Shape::kKeyStages> ks;
  Ring<2> scores;
  Ring<1> sums{.parity = 1};
  Ring<Shape::kQueryStages> qs;  // holds dout as well, unless steps overlap
  Ring<Shape::kDoutStages> os;
  float dk[kGrad], dv[kGrad], s[kScores];

  /// The work number that arrived with the keys, broadcast so that the compiler knows it is equal in all lanes.
  __device__ int next_work() const { return __shfl_sync(0xffffffffu, *m.work(ks.stage), 0); }
  /// s = rows of `a` (keys) of this warpgroup times all rows of b (queries).
  __device__ void issue_scores(float (&s)[kScores], const char* keys, const char* queries) const {
    const auto a = wgmma_descriptor<Major::k>(keys + group * 64 * 128), b = wgmma_descriptor<Major::k>(queries);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kWidth / 16; ++c)
      wgmma<T, Major::k, Major::k>(s, a + (c / 4 * Shape::kKeys * 128 >> 4) + c % 4 * kStepK,
                                   b + (c / 4 * Shape::kQueries * 128 >> 4) + c % 4 * kStepK, c > 0);
    wgmma_commit();
  }
  __device__ void issue_gradient(float (&d)[kGrad], const unsigned (&a)[kScores / 8][4], const char* rows) const {
    const auto b = wgmma_descriptor<Major::mn>(rows, Shape::kQueries);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kQueries / 16; ++c) wgmma<T, Major::mn>(d, a[c], b + c * kStepMn, true);
    wgmma_commit();
  }
  /// 128 queries: each warpgroup computes half of them; 64 queries: each computes half of the columns.
  __device__ void issue_dq(float (&d)[Shape::kSums]) const {
    constexpr bool kRows = Shape::kQueries == 128;
    const auto a =
        wgmma_descriptor<Major::mn>(m.score(scores.stage) + (kRows ? group * Shape::kKeys * 128 : 0), Shape::kKeys);
    const auto b =
        wgmma_descriptor<Major::mn>(m.key(ks.stage) + (kRows ? 0 : group * Shape::kKeys * 128), Shape::kKeys);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kKeys / 16; ++c)
      wgmma<T, Major::mn, Major::mn>(d, a + c * kStepMn, b + c * kStepMn, c > 0);
    wgmma_commit();
  }
  /// s -> P^T.
  template <bool kMasked> __device__ void probabilities(const BackwardPiece<Shape>& w, int tile) {
    const float* lse = m.lse(qs.stage);
    const int column = static_cast<int>(threadIdx.x) % 4 * 2,
              key = w.piece * Shape::kKeys + group * 64 +
                    static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    const float scale = p.scale * 1.4426950408889634f;
    [[maybe_unused]] int end[2];  // of the documents of this thread's keys
    if constexpr (kMasked && Shape::kDocuments) end[0] = w.document_end(p, key), end[1] = w.document_end(p, key + 8);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(lse + 8 * j + column);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[4 * j + 2 * h + i];
          x = exp2_fast(::fmaf(x, scale, i == 0 ? -l.x : -l.y));
          if constexpr (kMasked) {
            const int at = key + 8 * h, query = tile * Shape::kQueries + 8 * j + column + i;
            if (at >= p.keys || (p.causal && at > query + w.offset)) x = 0;
            if constexpr (Shape::kDocuments)
              if (query >= end[h]) x = 0;
          }
        }
    }
  }
  /// BackwardProblem::lse of the current tile: 0, or 1 + its number.
  __device__ int far_tile() const { return __float_as_int(m.lse(qs.stage)[Shape::kQueries]); }
  /// Makes the scores of this tile's far rows relative to the largest score of each row.
  __device__ void subtract_tops(int number) {
    const float* tops = p.tops + static_cast<std::int64_t>(number) * Shape::kQueries + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 top = *reinterpret_cast<const float2*>(tops + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i) s[4 * j + 2 * h + i] = below_top(s[4 * j + 2 * h + i], i == 0 ? top.x : top.y);
    }
  }
  /// s -> P^T, rounded, as a register operand.
  __device__ void probabilities(unsigned (&a)[kScores / 8][4], const BackwardPiece<Shape>& w, int tile, bool masked,
                                int far) {
    if (masked || far != 0) {  // one branch for the many tiles that are neither
      if (far != 0) subtract_tops(far - 1);
      probabilities<true>(w, tile);
    } else {
      probabilities<false>(w, tile);
    }
    pack_operand<T>(a, s);
  }
  /// dS^T = P^T (dP^T - delta), as a register operand.
  __device__ void score_gradients(unsigned (&b)[kScores / 8][4], const unsigned (&a)[kScores / 8][4],
                                  float (&dp)[kScores], const float* delta) const {
    delta += threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 x = *reinterpret_cast<const float2*>(delta + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        dp[4 * j + 2 * h] = unpack_low<T>(a[j / 2][j % 2 * 2 + h]) * (dp[4 * j + 2 * h] - x.x);
        dp[4 * j + 2 * h + 1] = unpack_high<T>(a[j / 2][j % 2 * 2 + h]) * (dp[4 * j + 2 * h + 1] - x.y);
      }
    }
    pack_operand<T>(b, dp);
  }
  /// Stores dS^T of this warpgroup, one row per key, for dq.
  __device__ void put_scores(const unsigned (&a)[kScores / 8][4]) const {
    const unsigned to = shared_address(m.score(scores.stage)) + static_cast<unsigned>(group * kPieceBytes);
#pragma unroll
    for (int c = 0; c < kScores / 8; ++c)
      store_matrices(to + static_cast<unsigned>(c / 4 * Shape::kKeys * 128) + matrix_at<unsigned>(c % 4), a[c][0],
                     a[c][1], a[c][2], a[c][3]);
    fence_async_proxy();
  }
  /// Stores d in register order: for each warp, four registers of every thread at a time.
  __device__ void put_dq(float (&d)[Shape::kSums], const BackwardPiece<Shape>& w, int head, int tile) {
    const int turn = w.turn(p, tile),
              at = static_cast<int>(threadIdx.x) % 128 / 32 * 8 * Shape::kSums + static_cast<int>(threadIdx.x) % 32;
    if (w.closes(p, tile, turn)) {
      const std::int64_t place = w.place(p, head, tile, group);
      if (!w.opens(p, tile, turn)) {
        const auto* sums = reinterpret_cast<const float4*>(p.sums) + place * (Shape::kSumBytes / 16) + at;
        while (turn_now(p.turns + place) != static_cast<unsigned>(turn)) {}
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Shape::kSums / 4; ++i) {
          const float4 before = __ldcg(sums + 32 * i);
          d[4 * i] += before.x, d[4 * i + 1] += before.y, d[4 * i + 2] += before.z, d[4 * i + 3] += before.w;
        }
      }
      constexpr bool kRows = Shape::kQueries == 128;
      return put_gradient<T>(p.dq, d, p.scale, w.sequence, head, tile * Shape::kQueries + (kRows ? 64 * group : 0),
                             kRows ? 0 : 64 * group, p.queries, p.width);
    }
    m.all_sums().wait_empty(Slot{group, sums.parity});
    sums.next();
    // The stage is always 0, but ptxas does not deduce that: it would keep an address known to be constant in a
    // register throughout the loop and spill others.
    const unsigned to = shared_address(m.sums(Shape::kPipelined ? group + sums.stage : group));
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + static_cast<unsigned>(at + 32 * i) * 16),
                   "f"(d[4 * i]), "f"(d[4 * i + 1]), "f"(d[4 * i + 2]), "f"(d[4 * i + 3])
                   : "memory");
    m.all_sums().filled(Slot{group, 0});
  }
  __device__ void issue_next_scores() {
    m.queries().get(qs);
    issue_scores(s, m.key(ks.stage), m.query(qs.stage));
  }
  /// Issues the scores of the next stage of queries if there is one, then waits for the products issued before them.
  template <bool kMore> __device__ void issue_scores_behind() {
    qs.next();
    if constexpr (kMore) {
      issue_next_scores();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
  }
  __device__ void begin_piece() {
#pragma unroll
    for (int i = 0; i < kGrad; ++i) dk[i] = dv[i] = 0;
    issue_next_scores();
    wgmma_wait<0>();
    wgmma_pin(s);
  }
  __device__ void end_piece(const BackwardPiece<Shape>& w) {
    m.keys().fenced_done(ks.stage);
    ks.next();
    if constexpr (Shape::kParts) {
      const int token = w.piece * Shape::kKeys + 64 * group;
      put_share(p.dk, p.shares + p.share(w.part, w.sequence, token, w.kv_head), dk, p.scale, token, p);
      put_share(p.dv, p.shares + p.share(p.parts + w.part, w.sequence, token, w.kv_head), dv, 1.0f, token, p);
      return;
    }
    put_gradient<T>(p.dk, dk, p.scale, w.sequence, w.kv_head, w.piece * Shape::kKeys + 64 * group, 0, p.keys, p.width);
    put_gradient<T>(p.dv, dv, 1.0f, w.sequence, w.kv_head, w.piece * Shape::kKeys + 64 * group, 0, p.keys, p.width);
  }

  /// s holds the scores of this tile and, on return, those of the next tile, if there is one.
  template <bool kMore> __device__ void step(const BackwardPiece<Shape>& w, int head, int tile, bool masked) {
    float ds[kScores];
    const int far = far_tile();
    m.douts().get(qs);
    issue_scores(ds, m.value(ks.stage), m.dout(qs.stage));
    unsigned a[kScores / 8][4], b[kScores / 8][4];
    probabilities(a, w, tile, masked, far);
    issue_gradient(dv, a, m.dout(qs.stage));
    wgmma_wait<1>();
    wgmma_pin(ds);
    score_gradients(b, a, ds, m.delta(qs.stage));
    issue_gradient(dk, b, m.query(qs.stage));
    put_scores(b);
    wgmma_wait<0>();
    wgmma_pin(dk), wgmma_pin(dv);
    named_sync(1, 256);
    float dq[Shape::kSums];
    issue_dq(dq);
    const int stage = qs.stage;
    issue_scores_behind<kMore>();
    wgmma_pin(dq);
    m.douts().fenced_done(stage);
    m.queries().fenced_done(stage);
    scores.next();
    put_dq(dq, w, head, tile);
    wgmma_wait<0>();
    wgmma_pin(s);
  }
  __device__ void walk(int work) {
    const auto w = BackwardPiece<Shape>::find(p, work);
    begin_piece();
    const int last = w.steps(p) - 1;
    for (int i = 0; i < last; ++i) step<true>(w, w.head(p, i), w.tile(p, i), w.masked(p, w.tile(p, i)));
    step<false>(w, w.head(p, last), w.tile(p, last), w.masked(p, w.tile(p, last)));
    end_piece(w);
  }

  // In backward_pipelined.h.
  __device__ void issue_dk(const char* queries);
  __device__ void issue_next_dv(const unsigned (&a)[kScores / 8][4]);
  template <bool kMore>
  __device__ void pipelined_step(const BackwardPiece<Shape>& w, unsigned (&a)[kScores / 8][4], int head, int tile,
                                 int next, bool masked);
  __device__ void pipelined_walk(int work);
};

#endif

}  // namespace hpcdl::cuda
