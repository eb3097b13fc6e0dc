#pragma once
// Attention backward on Hopper's tensor cores (.cu files). A piece of work is kKeys keys of one key/value head of one
// sequence: two consumer warpgroups own half of the keys each and walk over all queries that see them, so dk and dv
// stay in registers:
//
//   P^T  = exp2(scale K Q^T - lse)      registers, the A operand of dv += P^T dO
//   dS^T = P^T (V dO^T - delta)         registers, the A operand of dk += dS^T Q; to shared memory for dq = dS K
//
// dq of a tile of queries is the sum of what the pieces of its keys give. It is added up in global memory in the order
// of the pieces (a warp beside the consumers waits for the turn and has the copy engine add), so results repeat bit for
// bit; the piece whose turn is the last writes dq itself. Pieces are handed out in that order too. From the last keys
// to the first, a causal mask lets each piece start where the one before it is a step ahead, so turns are hardly waited
// for; the other way round the longest pieces begin first. Pieces of several heads are handed out in turns, so that
// those of one head do not meet. Sources: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

#include "hpcdl/core/stream.h"
#include "hpcdl/cuda/arch.h"
#include "hpcdl/cuda/tma.h"
#include "hpcdl/cuda/warpgroup.h"
#include "hpcdl/ops/attention/heads.h"
#include "hpcdl/ops/attention/softmax_rows.h"

namespace hpcdl::cuda {

struct BackwardProblem {
  Heads dq, dk, dv;
  const float* lse = nullptr;    // (B * H, padded T) of lse * log2 e, +inf behind T
  const float* delta = nullptr;  // (B * H, padded T) of sum(dO out)
  float* sums = nullptr;         // dq so far, in the order of the accumulators' registers
  unsigned* turns = nullptr;     // (B * H, tiles of queries, 2 warpgroups): pieces added so far
  unsigned* ticket = nullptr;    // pieces handed out so far
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0;
  bool causal = false;
  float scale = 0;
  bool ascending = false;  // pieces in the order of their keys, queries from the last
  int section = 1;         // key/value heads whose pieces are handed out in turns
};

template <int kWidth_, int kQueries_, int kStages_> struct BackwardShape {
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kStages = kStages_, kKeys = 128, kThreads = 384,
                       kHalves = kWidth / 64;
  static constexpr int kKeyStages = kWidth == 64 ? 2 : 1;  // of keys and values: what shared memory holds
  static constexpr int kQueryBytes = kQueries * kWidth * 2, kKeyBytes = kKeys * kWidth * 2,
                       kScoreBytes = kQueries * kKeys * 2;
  static constexpr int kSumBytes = kQueries * kWidth * 2;  // of dq that one warpgroup makes, f32
  static constexpr int kBytes = 2 * kStages * kQueryBytes + 2 * kKeyStages * kKeyBytes + 2 * kScoreBytes +
                                2 * kSumBytes + kStages * kQueries * 8 + 256;
  static constexpr int kSums = kQueries * kWidth / 256;  // of dq that one thread holds

  static __host__ __device__ int tiles(int queries) { return (queries + kQueries - 1) / kQueries; }
  static __host__ __device__ int pieces(int keys) { return (keys + kKeys - 1) / kKeys; }
};

/// Tiles of queries [first, tiles) see the keys of a piece.
template <class Shape> struct BackwardPiece {
  int kv_head, sequence, piece, first, tiles, offset;

  static __device__ BackwardPiece find(const BackwardProblem& p, int work) {
    const int pieces = Shape::pieces(p.keys), section = work / (pieces * p.section),
              r = work - section * pieces * p.section, begin = section * p.section;
    const int all = p.batch * p.kv_heads, count = all - begin < p.section ? all - begin : p.section,
              head = begin + r % count;
    BackwardPiece w{head % p.kv_heads,       head / p.kv_heads, p.ascending ? r / count : pieces - 1 - r / count, 0,
                    Shape::tiles(p.queries), p.keys - p.queries};
    if (p.causal && w.piece * Shape::kKeys > w.offset) w.first = (w.piece * Shape::kKeys - w.offset) / Shape::kQueries;
    return w;
  }
  /// The last piece that a tile of queries sees.
  __device__ int last(const BackwardProblem& p, int tile) const {
    const int end = Shape::pieces(p.keys) - 1,
              seen = p.causal ? (tile * Shape::kQueries + Shape::kQueries - 1 + offset) / Shape::kKeys : end;
    return seen < end ? seen : end;
  }
  /// Step i of this piece.
  __device__ int tile(const BackwardProblem& p, int i) const {
    const int t = i / (p.heads / p.kv_heads);
    return p.ascending ? tiles - 1 - t : first + t;
  }
  __device__ int head(const BackwardProblem& p, int i) const {
    return kv_head * (p.heads / p.kv_heads) + i % (p.heads / p.kv_heads);
  }
  /// When this piece is added to a tile.
  __device__ int turn(const BackwardProblem& p, int tile) const { return p.ascending ? piece : last(p, tile) - piece; }
  /// Where a warpgroup's part of a tile stands among all.
  __device__ std::int64_t place(const BackwardProblem& p, int head, int tile, int group) const {
    return ((static_cast<std::int64_t>(sequence) * p.heads + head) * tiles + tile) * 2 + group;
  }
  __device__ int steps(const BackwardProblem& p) const { return (tiles - first) * (p.heads / p.kv_heads); }
};

#if HPCDL_SM90A

template <class Shape> struct BackwardMemory {
  char* base;  // a multiple of 1024
  __device__ char* key(int s) const { return base + s * Shape::kKeyBytes; }
  __device__ char* value(int s) const { return key(Shape::kKeyStages + s); }
  __device__ char* query(int s) const { return key(2 * Shape::kKeyStages) + s * Shape::kQueryBytes; }
  __device__ char* dout(int s) const { return query(Shape::kStages + s); }
  __device__ char* score(int s) const { return query(2 * Shape::kStages) + s * Shape::kScoreBytes; }
  __device__ float4* sums(int group) const { return reinterpret_cast<float4*>(score(2) + group * Shape::kSumBytes); }
  __device__ float* lse(int s) const { return reinterpret_cast<float*>(sums(2)) + s * Shape::kQueries; }
  __device__ float* delta(int s) const { return lse(Shape::kStages + s); }
  __device__ Barrier* barriers() const { return reinterpret_cast<Barrier*>(lse(2 * Shape::kStages)); }
  __device__ Barrier* key_full(int s) const { return barriers() + s; }
  __device__ Barrier* key_empty(int s) const { return barriers() + 2 + s; }
  __device__ Barrier* sums_full(int group) const { return barriers() + 4 + group; }
  __device__ Barrier* sums_empty(int group) const { return barriers() + 6 + group; }
  __device__ Barrier* query_full(int s) const { return barriers() + 8 + s; }
  __device__ Barrier* query_empty(int s) const { return barriers() + 8 + Shape::kStages + s; }
  __device__ Barrier* dout_full(int s) const { return barriers() + 8 + 2 * Shape::kStages + s; }
  __device__ Barrier* dout_empty(int s) const { return barriers() + 8 + 3 * Shape::kStages + s; }
  __device__ int* work(int s) const { return reinterpret_cast<int*>(barriers() + 8 + 4 * Shape::kStages) + s; }

  __device__ void init() const {
    for (int s = 0; s < Shape::kKeyStages; ++s)
      barrier_init(key_full(s), 1), barrier_init(key_empty(s), 10);  // consumer warps, adders
    for (int g = 0; g < 2; ++g) barrier_init(sums_full(g), 4), barrier_init(sums_empty(g), 1);
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(query_full(s), 1), barrier_init(dout_full(s), 1);
      barrier_init(query_empty(s), 2), barrier_init(dout_empty(s), 2);
    }
    fence_barrier_init();
  }
};

/// By one thread.
template <class Shape>
__device__ void backward_produce(const BackwardMemory<Shape>& m, const TensorMap& q, const TensorMap& k,
                                 const TensorMap& v, const TensorMap& dout, const BackwardProblem& p) {
  Ring<Shape::kKeyStages> ks{.parity = 1};
  Ring<Shape::kStages> qs{.parity = 1};
  const int works = Shape::pieces(p.keys) * p.kv_heads * p.batch, padded = Shape::tiles(p.queries) * Shape::kQueries;
  const auto load = [](char* to, int rows, const TensorMap& map, Barrier* full, int head, int row, int sequence) {
    for (int i = 0; i < Shape::kHalves; ++i) tma_load(to + i * rows * 128, map, full, 64 * i, head, row, sequence);
  };
  while (true) {
    const int work = static_cast<int>(atomicAdd(p.ticket, 1u));
    barrier_wait(m.key_empty(ks.stage), ks.parity);
    *m.work(ks.stage) = work;
    if (work >= works) return barrier_arrive(m.key_full(ks.stage));
    const auto w = BackwardPiece<Shape>::find(p, work);
    barrier_expect(m.key_full(ks.stage), 2 * Shape::kKeyBytes);
    load(m.key(ks.stage), Shape::kKeys, k, m.key_full(ks.stage), w.kv_head, w.piece * Shape::kKeys, w.sequence);
    load(m.value(ks.stage), Shape::kKeys, v, m.key_full(ks.stage), w.kv_head, w.piece * Shape::kKeys, w.sequence);
    ks.next();
    for (int i = 0; i < w.steps(p); ++i) {
      const int h = w.head(p, i), tile = w.tile(p, i);
      const std::int64_t row = (static_cast<std::int64_t>(w.sequence) * p.heads + h) * padded + tile * Shape::kQueries;
      const auto bring = [&](char* to, float* statistic, const TensorMap& map, const float* from, Barrier* full,
                             Barrier* empty) {
        barrier_wait(empty, qs.parity);
        barrier_expect(full, Shape::kQueryBytes + Shape::kQueries * 4);
        load(to, Shape::kQueries, map, full, h, tile * Shape::kQueries, w.sequence);
        bulk_load(statistic, from + row, Shape::kQueries * 4, full);
      };
      bring(m.query(qs.stage), m.lse(qs.stage), q, p.lse, m.query_full(qs.stage), m.query_empty(qs.stage));
      bring(m.dout(qs.stage), m.delta(qs.stage), dout, p.delta, m.dout_full(qs.stage), m.dout_empty(qs.stage));
      qs.next();
    }
  }
}

/// How many pieces have been added to a warpgroup's part of a tile.
__device__ inline unsigned turn_now(const unsigned* turn) {
  unsigned now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  return now;
}

/// By one thread for each consumer warpgroup: adds what it leaves of dq when the turn has come, so that the consumer
/// need not wait.
template <class Shape>
__device__ void backward_add(const BackwardMemory<Shape>& m, const BackwardProblem& p, int group) {
  Ring<Shape::kKeyStages> ks;
  Ring<1> full;
  const int works = Shape::pieces(p.keys) * p.kv_heads * p.batch;
  while (true) {
    barrier_wait(m.key_full(ks.stage), ks.parity);
    const int work = *m.work(ks.stage);
    if (work >= works) return;
    barrier_arrive(m.key_empty(ks.stage));
    ks.next();
    const auto w = BackwardPiece<Shape>::find(p, work);
    for (int i = 0; i < w.steps(p); ++i) {
      const int tile = w.tile(p, i), turn = w.turn(p, tile);
      if (turn == w.last(p, tile)) continue;
      const std::int64_t at = w.place(p, w.head(p, i), tile, group);
      char* sums = reinterpret_cast<char*>(p.sums) + at * Shape::kSumBytes;
      barrier_wait(m.sums_full(group), full.parity);
      full.next();
      if (turn == 0) {
        bulk_store(sums, m.sums(group), Shape::kSumBytes);
      } else {
        while (turn_now(p.turns + at) != static_cast<unsigned>(turn)) {}
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sums),
                     "r"(shared_address(m.sums(group))), "r"(Shape::kSumBytes)
                     : "memory");
      }
      tma_commit();
      tma_wait_read<0>();
      barrier_arrive(m.sums_empty(group));
      tma_wait<0>();
      asm volatile("fence.proxy.async.global;" ::: "memory");
      __threadfence();
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.turns + at), "r"(turn + 1) : "memory");
    }
  }
}

/// Registers v[0..3] of four neighbouring threads change places: thread i gets number i of all.
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
/// scale * an accumulator of 64 rows, the first of which is `token`, to columns [column, column + 2 kCount) of a
/// gradient that has `tokens` x `width`.
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

template <class T, class Shape> struct BackwardConsumer {
  static constexpr int kScores = Shape::kQueries / 2, kGrad = Shape::kWidth / 2;
  const BackwardMemory<Shape>& m;
  const BackwardProblem& p;
  int group;
  Ring<Shape::kKeyStages> ks;
  Ring<2> scores;
  Ring<1> sums{.parity = 1};
  Ring<Shape::kStages> qs;
  float dk[kGrad], dv[kGrad], s[kScores];

  __device__ bool leader() const { return threadIdx.x % 128 == 0; }
  __device__ void release(Barrier* b) const {
    if (leader()) barrier_arrive(b);
  }
  /// The work number that came with the keys. The thread that reads it is the one of its warp that gives the keys back.
  __device__ int next_work() const {
    return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? *m.work(ks.stage) : 0, 0);
  }
  __device__ void release_keys() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(m.key_empty(ks.stage));
  }
  /// s = rows of this warpgroup of `a`, keys, times all rows of b, queries.
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
  /// 128 queries: a half of them each; 64 queries: a half of the columns each.
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
          }
        }
    }
  }
  /// dS^T of this warpgroup, a row per key, for dq.
  __device__ void put_scores(const unsigned (&a)[kScores / 8][4]) const {
    const unsigned to = shared_address(m.score(scores.stage)), lane = threadIdx.x % 32,
                   r = static_cast<unsigned>(group) * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < kScores / 8; ++c)
      store_matrices(to + static_cast<unsigned>(c / 4 * Shape::kKeys * 128) +
                         swizzled128(r * 128 + static_cast<unsigned>(c % 4 * 32) + lane / 16 * 16),
                     a[c][0], a[c][1], a[c][2], a[c][3]);
    fence_async_proxy();
  }
  /// d in the order of registers: of each warp, four of every thread at a time.
  __device__ void put_dq(float (&d)[Shape::kSums], const BackwardPiece<Shape>& w, int head, int tile) {
    const int turn = w.turn(p, tile),
              at = static_cast<int>(threadIdx.x) % 128 / 32 * 8 * Shape::kSums + static_cast<int>(threadIdx.x) % 32;
    if (turn == w.last(p, tile)) {
      const std::int64_t place = w.place(p, head, tile, group);
      if (turn > 0) {
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
    barrier_wait(m.sums_empty(group), sums.parity);
    sums.next();
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(m.sums(group)) +
                                                                    static_cast<unsigned>(at + 32 * i) * 16),
                   "f"(d[4 * i]), "f"(d[4 * i + 1]), "f"(d[4 * i + 2]), "f"(d[4 * i + 3])
                   : "memory");
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(m.sums_full(group));
  }
  __device__ void begin_tile() {
    barrier_wait(m.query_full(qs.stage), qs.parity);
    issue_scores(s, m.key(ks.stage), m.query(qs.stage));
  }
  /// s holds the scores of this tile and, when this returns, those of the next, where there are more.
  template <bool kMore> __device__ void step(const BackwardPiece<Shape>& w, int head, int tile, bool masked) {
    float ds[kScores];
    barrier_wait(m.dout_full(qs.stage), qs.parity);
    issue_scores(ds, m.value(ks.stage), m.dout(qs.stage));
    if (masked) probabilities<true>(w, tile);
    else probabilities<false>(w, tile);
    unsigned a[kScores / 8][4], b[kScores / 8][4];
    pack_operand<T>(a, s);
    issue_gradient(dv, a, m.dout(qs.stage));
    wgmma_wait<1>();
    wgmma_pin(ds);
    const float* delta = m.delta(qs.stage) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 x = *reinterpret_cast<const float2*>(delta + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        ds[4 * j + 2 * h] = unpack_low<T>(a[j / 2][j % 2 * 2 + h]) * (ds[4 * j + 2 * h] - x.x);
        ds[4 * j + 2 * h + 1] = unpack_high<T>(a[j / 2][j % 2 * 2 + h]) * (ds[4 * j + 2 * h + 1] - x.y);
      }
    }
    pack_operand<T>(b, ds);
    issue_gradient(dk, b, m.query(qs.stage));
    put_scores(b);
    wgmma_wait<0>();
    wgmma_pin(dk), wgmma_pin(dv);
    named_sync(1, 256);
    float dq[Shape::kSums];
    issue_dq(dq);
    const int stage = qs.stage;
    qs.next();
    if constexpr (kMore) {
      begin_tile();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    wgmma_pin(dq);
    release(m.dout_empty(stage));
    release(m.query_empty(stage));
    scores.next();
    put_dq(dq, w, head, tile);
    wgmma_wait<0>();
    wgmma_pin(s);
  }
  __device__ void walk(int work) {
    const auto w = BackwardPiece<Shape>::find(p, work);
#pragma unroll
    for (int i = 0; i < kGrad; ++i) dk[i] = dv[i] = 0;
    const int first_key = w.piece * Shape::kKeys, last_key = first_key + Shape::kKeys - 1;
    const auto masked = [&](int tile) {
      return last_key >= p.keys || (p.causal && last_key > tile * Shape::kQueries + w.offset);
    };
    begin_tile();
    wgmma_wait<0>();
    wgmma_pin(s);
    const int last = w.steps(p) - 1;
    for (int i = 0; i < last; ++i) step<true>(w, w.head(p, i), w.tile(p, i), masked(w.tile(p, i)));
    step<false>(w, w.head(p, last), w.tile(p, last), masked(w.tile(p, last)));
    release_keys();
    ks.next();
    put_gradient<T>(p.dk, dk, p.scale, w.sequence, w.kv_head, first_key + 64 * group, 0, p.keys, p.width);
    put_gradient<T>(p.dv, dv, 1.0f, w.sequence, w.kv_head, first_key + 64 * group, 0, p.keys, p.width);
  }
};

#endif

/// Tensor maps are (width, heads, tokens, batch) with boxes of (64, 1, rows, 1): kQueries rows of q and dout, kKeys of
/// k and v. What a box has beyond the width of a head is 0, and adds nothing.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_backward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                             const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dout,
                             const __grid_constant__ BackwardProblem p) {
#if HPCDL_SM90A
  extern __shared__ __align__(1024) char memory[];
  const BackwardMemory<Shape> m{memory};
  const int warp = warp_index();
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  if (warp >= 8) {
    release_registers<24>();
    if (warp == 8 && elect_one()) backward_produce<Shape>(m, q, k, v, dout, p);
    if (warp >= 10 && elect_one()) backward_add<Shape>(m, p, warp - 10);
  } else {
    claim_registers<240>();
    const int works = Shape::pieces(p.keys) * p.kv_heads * p.batch;
    BackwardConsumer<T, Shape> c{.m = m, .p = p, .group = warp / 4};
    while (true) {
      barrier_wait(m.key_full(c.ks.stage), c.ks.parity);
      const int work = c.next_work();
      if (work >= works) break;
      c.walk(work);
    }
  }
#endif
}

/// delta and lse in the order and padding of backward; all turns and the ticket to 0. One warp a row of 8 kLanes x 16
/// bytes.
template <class T, int kWidth>
__global__ void __launch_bounds__(256)
    attention_backward_begin(Heads out, Heads dout, const float* lse, float* lse2, float* delta, unsigned* counters,
                             int count, int heads, int queries, int padded, int rows, int width) {
  constexpr int kShare = kWidth / 8, kTogether = 32 / kShare;  // threads of a row, rows of a warp
  const int thread = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += static_cast<int>(gridDim.x) * 256) counters[i] = 0;
  const int r = thread / 32 * kTogether + thread % 32 / kShare, lane = thread % kShare;
  if (r >= rows) return;
  // Rows in memory order: (B, padded T, H).
  const int h = r % heads, t = r / heads % padded, b = r / heads / padded;
  float sum = 0;
  if (t < queries && 8 * lane < width) {
    const auto read = [&](const Heads& x) {
      return *reinterpret_cast<const uint4*>(static_cast<const T*>(x.data) + b * x.batch + t * x.token + h * x.head +
                                             8 * lane);
    };
    const uint4 x = read(out), y = read(dout);
    const unsigned xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum += unpack_low<T>(xs[i]) * unpack_low<T>(ys[i]) + unpack_high<T>(xs[i]) * unpack_high<T>(ys[i]);
  }
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane != 0) return;
  const std::int64_t at = (static_cast<std::int64_t>(b) * heads + h) * padded + t;
  delta[at] = sum;
  lse2[at] = t < queries ? lse[(static_cast<std::int64_t>(b) * heads + h) * queries + t] * 1.4426950408889634f
                         : __builtin_inff();
}

}  // namespace hpcdl::cuda
