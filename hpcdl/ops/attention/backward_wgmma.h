#pragma once
// Attention backward on Hopper's tensor cores (.cu files). A piece of work is kKeys keys of one key/value head of one sequence:
// two consumer warpgroups own half of the keys each and walk over all queries that see them, so dk and dv stay in registers:
//
//   P^T  = exp2(scale K Q^T - lse)      registers, the A operand of dv += P^T dO
//   dS^T = P^T (V dO^T - delta)         registers, the A operand of dk += dS^T Q; to shared memory for dq = dS K
//
// dq of a tile of queries is the sum of what the pieces of its keys give. It is added up in global memory in the order of the
// pieces (each warp waits for its turn at its part of the tile), so results repeat bit for bit. Pieces are handed out from the last
// keys to the first: under a causal mask a piece starts where the one in front of it in the order is a step ahead, so turns are
// hardly waited for. The first piece's turn comes last and writes dq itself.
// Sources: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

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
  unsigned* turns = nullptr;     // (B * H, tiles of queries, 8 warps): pieces added so far
  unsigned* ticket = nullptr;    // pieces handed out so far
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  bool causal = false;
  float scale = 0;
};

template <int kWidth_, int kQueries_, int kStages_> struct BackwardShape {
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kStages = kStages_, kKeys = 128, kThreads = 384, kHalves = kWidth / 64;
  static constexpr int kQueryBytes = kQueries * kWidth * 2, kKeyBytes = kKeys * kWidth * 2, kScoreBytes = kQueries * kKeys * 2;
  static constexpr int kBytes = 1024 + 2 * kStages * kQueryBytes + 4 * kKeyBytes + 2 * kScoreBytes + kStages * kQueries * 8 + 256;
  static constexpr int kSums = kQueries * kWidth / 256;  // of dq that one thread holds

  static __host__ __device__ int tiles(int queries) { return (queries + kQueries - 1) / kQueries; }
  static __host__ __device__ int pieces(int keys) { return (keys + kKeys - 1) / kKeys; }
};

/// Tiles of queries [first, tiles) see the keys of a piece.
template <class Shape> struct BackwardPiece {
  int kv_head, sequence, piece, first, tiles, offset;

  static __device__ BackwardPiece find(const BackwardProblem& p, int work) {
    const int pieces = Shape::pieces(p.keys), head = work / pieces;
    BackwardPiece w{head % p.kv_heads, head / p.kv_heads, pieces - 1 - work % pieces, 0, Shape::tiles(p.queries), p.keys - p.queries};
    if (p.causal && w.piece * Shape::kKeys > w.offset) w.first = (w.piece * Shape::kKeys - w.offset) / Shape::kQueries;
    return w;
  }
  /// Pieces whose turn at a tile of queries comes first.
  __device__ unsigned turn(const BackwardProblem& p, int tile) const {
    int last = Shape::pieces(p.keys) - 1;
    if (p.causal) {
      const int seen = (tile * Shape::kQueries + Shape::kQueries - 1 + offset) / Shape::kKeys;
      last = seen < last ? seen : last;
    }
    return static_cast<unsigned>(last - piece);
  }
};

#if HPCDL_SM90A

template <class Shape> struct BackwardMemory {
  char* base;
  __device__ explicit BackwardMemory(char* raw) : base(raw + (1024 - shared_address(raw) % 1024) % 1024) {}
  __device__ char* key(int s) const { return base + s * Shape::kKeyBytes; }
  __device__ char* value(int s) const { return key(2 + s); }
  __device__ char* query(int s) const { return base + 4 * Shape::kKeyBytes + s * Shape::kQueryBytes; }
  __device__ char* dout(int s) const { return query(Shape::kStages + s); }
  __device__ char* score(int s) const { return query(2 * Shape::kStages) + s * Shape::kScoreBytes; }
  __device__ float* lse(int s) const { return reinterpret_cast<float*>(score(2)) + s * Shape::kQueries; }
  __device__ float* delta(int s) const { return lse(Shape::kStages + s); }
  __device__ Barrier* barriers() const { return reinterpret_cast<Barrier*>(lse(2 * Shape::kStages)); }
  __device__ Barrier* key_full(int s) const { return barriers() + s; }
  __device__ Barrier* key_empty(int s) const { return barriers() + 2 + s; }
  __device__ Barrier* query_full(int s) const { return barriers() + 4 + s; }
  __device__ Barrier* query_empty(int s) const { return barriers() + 4 + Shape::kStages + s; }
  __device__ Barrier* dout_full(int s) const { return barriers() + 4 + 2 * Shape::kStages + s; }
  __device__ Barrier* dout_empty(int s) const { return barriers() + 4 + 3 * Shape::kStages + s; }
  __device__ int* work(int s) const { return reinterpret_cast<int*>(barriers() + 4 + 4 * Shape::kStages) + s; }

  __device__ void init() const {
    for (int s = 0; s < 2; ++s) barrier_init(key_full(s), 1), barrier_init(key_empty(s), 2);
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(query_full(s), 1), barrier_init(dout_full(s), 1);
      barrier_init(query_empty(s), 2), barrier_init(dout_empty(s), 2);
    }
    fence_barrier_init();
  }
};

/// By one thread.
template <class Shape>
__device__ void backward_produce(const BackwardMemory<Shape>& m, const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout,
                                 const BackwardProblem& p) {
  Ring<2> ks{.parity = 1};
  Ring<Shape::kStages> qs{.parity = 1};
  const int works = Shape::pieces(p.keys) * p.kv_heads * p.batch, group = p.heads / p.kv_heads, padded = Shape::tiles(p.queries) * Shape::kQueries;
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
    for (int h = w.kv_head * group; h < (w.kv_head + 1) * group; ++h)
      for (int tile = w.first; tile < w.tiles; ++tile) {
        const std::int64_t row = (static_cast<std::int64_t>(w.sequence) * p.heads + h) * padded + tile * Shape::kQueries;
        const auto bring = [&](char* to, float* statistic, const TensorMap& map, const float* from, Barrier* full, Barrier* empty) {
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
/// scale * an accumulator of 64 rows, the first of which is `token`, to columns [column, column + 2 kCount) of a gradient.
template <class T, int kCount>
__device__ void put_gradient(const Heads& to, const float (&d)[kCount], float scale, int sequence, int head, int token, int column, int tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  if (!to.data) return;
  T* data = static_cast<T*>(to.data) + sequence * to.batch + head * to.head + column;
#pragma unroll
  for (int c = 0; c < kCount / 16; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pack_pair<T>(d[16 * c + 4 * j + 2 * h] * scale, d[16 * c + 4 * j + 2 * h + 1] * scale);
      quad_transpose(v);
      const int at = token + row + 8 * h;
      if (at >= tokens) continue;
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
  Ring<2> ks, scores;
  Ring<Shape::kStages> qs;
  unsigned* pending = nullptr;  // the turn to pass on once this warp's additions are out
  unsigned pending_turn = 0;
  float dk[kGrad], dv[kGrad];

  __device__ bool leader() const { return threadIdx.x % 128 == 0; }
  __device__ void release(Barrier* b) const {
    if (leader()) barrier_arrive(b);
  }
  /// s = rows of this warpgroup of `a`, keys, times all rows of b, queries.
  __device__ void issue_scores(float (&s)[kScores], const char* keys, const char* queries) const {
    const auto a = wgmma_descriptor<Major::k>(keys + group * 64 * 128), b = wgmma_descriptor<Major::k>(queries);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kWidth / 16; ++c)
      wgmma<T, Major::k, Major::k>(s, a + (c / 4 * Shape::kKeys * 128 >> 4) + c % 4 * kStepK, b + (c / 4 * Shape::kQueries * 128 >> 4) + c % 4 * kStepK, c > 0);
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
    const auto a = wgmma_descriptor<Major::mn>(m.score(scores.stage) + (kRows ? group * Shape::kKeys * 128 : 0), Shape::kKeys);
    const auto b = wgmma_descriptor<Major::mn>(m.key(ks.stage) + (kRows ? 0 : group * Shape::kKeys * 128), Shape::kKeys);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kKeys / 16; ++c) wgmma<T, Major::mn, Major::mn>(d, a + c * kStepMn, b + c * kStepMn, c > 0);
    wgmma_commit();
  }
  /// s -> P^T.
  template <bool kMasked> __device__ void probabilities(float (&s)[kScores], const BackwardPiece<Shape>& w, int tile) const {
    const float* lse = m.lse(qs.stage);
    const int column = static_cast<int>(threadIdx.x) % 4 * 2, key = w.piece * Shape::kKeys + group * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
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
    const unsigned to = shared_address(m.score(scores.stage)), lane = threadIdx.x % 32, r = static_cast<unsigned>(group) * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < kScores / 8; ++c)
      store_matrices(to + static_cast<unsigned>(c / 4 * Shape::kKeys * 128) + swizzled128(r * 128 + static_cast<unsigned>(c % 4 * 32) + lane / 16 * 16), a[c][0], a[c][1],
                     a[c][2], a[c][3]);
    fence_async_proxy();
  }
  /// Behind the issue of other work, as it waits for what this warp has written.
  __device__ void pass_turn() {
    if (!pending) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      __threadfence();
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(pending), "r"(pending_turn) : "memory");
    }
    pending = nullptr;
  }
  __device__ void add_dq(float (&d)[Shape::kSums], const BackwardPiece<Shape>& w, int head, int tile) {
    const unsigned turn = w.turn(p, tile);
    const std::int64_t at = ((static_cast<std::int64_t>(w.sequence) * p.heads + head) * w.tiles + tile) * 8 + threadIdx.x / 32;
    float4* sums = reinterpret_cast<float4*>(p.sums + at * 32 * Shape::kSums) + threadIdx.x % 32;
    if (turn > 0) {
      if (threadIdx.x % 32 == 0) {
        unsigned now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(p.turns + at) : "memory");
        while (now != turn);
      }
      __syncwarp();
    }
    if (w.piece == 0) {
      if (turn > 0)
#pragma unroll
        for (int i = 0; i < Shape::kSums / 4; ++i) {
          const float4 before = __ldcg(sums + 32 * i);
          d[4 * i] += before.x, d[4 * i + 1] += before.y, d[4 * i + 2] += before.z, d[4 * i + 3] += before.w;
        }
      constexpr bool kRows = Shape::kQueries == 128;
      put_gradient<T>(p.dq, d, p.scale, w.sequence, head, tile * Shape::kQueries + (kRows ? 64 * group : 0), kRows ? 0 : 64 * group, p.queries);
      return;
    }
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i) {
      if (turn == 0) __stcg(sums + 32 * i, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
      else
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums + 32 * i), "f"(d[4 * i]), "f"(d[4 * i + 1]), "f"(d[4 * i + 2]),
                     "f"(d[4 * i + 3]) : "memory");
    }
    pending = p.turns + at;
    pending_turn = turn + 1;
  }
  template <bool kMasked> __device__ void step(const BackwardPiece<Shape>& w, int head, int tile) {
    float s[kScores], ds[kScores];
    barrier_wait(m.query_full(qs.stage), qs.parity);
    issue_scores(s, m.key(ks.stage), m.query(qs.stage));
    barrier_wait(m.dout_full(qs.stage), qs.parity);
    issue_scores(ds, m.value(ks.stage), m.dout(qs.stage));
    pass_turn();
    wgmma_wait<1>();
    wgmma_pin(s);
    probabilities<kMasked>(s, w, tile);
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
    put_scores(b);
    named_sync(1, 256);
    float dq[Shape::kSums];
    issue_dq(dq);
    issue_gradient(dk, b, m.query(qs.stage));
    wgmma_wait<1>();
    wgmma_pin(dq);
    wgmma_pin(dv);
    release(m.dout_empty(qs.stage));
    add_dq(dq, w, head, tile);
    wgmma_wait<0>();
    wgmma_pin(dk);
    release(m.query_empty(qs.stage));
    qs.next();
    scores.next();
  }
  __device__ void walk(int work) {
    const auto w = BackwardPiece<Shape>::find(p, work);
    const int heads = p.heads / p.kv_heads;
#pragma unroll
    for (int i = 0; i < kGrad; ++i) dk[i] = dv[i] = 0;
    const int first_key = w.piece * Shape::kKeys, last_key = first_key + Shape::kKeys - 1;
    for (int head = w.kv_head * heads; head < (w.kv_head + 1) * heads; ++head)
      for (int tile = w.first; tile < w.tiles; ++tile) {
        if (last_key >= p.keys || (p.causal && last_key > tile * Shape::kQueries + w.offset)) step<true>(w, head, tile);
        else step<false>(w, head, tile);
      }
    release(m.key_empty(ks.stage));
    ks.next();
    put_gradient<T>(p.dk, dk, p.scale, w.sequence, w.kv_head, first_key + 64 * group, 0, p.keys);
    put_gradient<T>(p.dv, dv, 1.0f, w.sequence, w.kv_head, first_key + 64 * group, 0, p.keys);
  }
};

#endif

/// Tensor maps are (width, heads, tokens, batch) with boxes of (64, 1, rows, 1): kQueries rows of q and dout, kKeys of k and v.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_backward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                             const __grid_constant__ TensorMap dout, const __grid_constant__ BackwardProblem p) {
#if HPCDL_SM90A
  extern __shared__ char raw[];
  const BackwardMemory<Shape> m(raw);
  const int warp = warp_index();
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  if (warp >= 8) {
    release_registers<24>();
    if (warp == 8 && elect_one()) backward_produce<Shape>(m, q, k, v, dout, p);
  } else {
    claim_registers<240>();
    const int works = Shape::pieces(p.keys) * p.kv_heads * p.batch;
    BackwardConsumer<T, Shape> c{.m = m, .p = p, .group = warp / 4};
    while (true) {
      barrier_wait(m.key_full(c.ks.stage), c.ks.parity);
      const int work = *m.work(c.ks.stage);
      if (work >= works) break;
      c.walk(work);
      c.pass_turn();
    }
  }
#endif
}

/// delta and lse in the order and padding of backward; all turns and the ticket to 0. One warp a row of 8 kLanes x 16 bytes.
template <class T, int kWidth>
__global__ void __launch_bounds__(256) attention_backward_begin(Heads out, Heads dout, const float* lse, float* lse2, float* delta, unsigned* counters,
                                                                int count, int heads, int queries, int padded, int rows) {
  constexpr int kShare = kWidth / 8, kTogether = 32 / kShare;  // threads of a row, rows of a warp
  const int thread = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += static_cast<int>(gridDim.x) * 256) counters[i] = 0;
  const int r = thread / 32 * kTogether + thread % 32 / kShare, lane = thread % kShare;
  if (r >= rows) return;
  // Rows in memory order: (B, padded T, H).
  const int h = r % heads, t = r / heads % padded, b = r / heads / padded;
  float sum = 0;
  if (t < queries) {
    const auto read = [&](const Heads& x) { return *reinterpret_cast<const uint4*>(static_cast<const T*>(x.data) + b * x.batch + t * x.token + h * x.head + 8 * lane); };
    const uint4 x = read(out), y = read(dout);
    const unsigned xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += unpack_low<T>(xs[i]) * unpack_low<T>(ys[i]) + unpack_high<T>(xs[i]) * unpack_high<T>(ys[i]);
  }
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane != 0) return;
  const std::int64_t at = (static_cast<std::int64_t>(b) * heads + h) * padded + t;
  delta[at] = sum;
  lse2[at] = t < queries ? lse[(static_cast<std::int64_t>(b) * heads + h) * queries + t] * 1.4426950408889634f : __builtin_inff();
}

}  // namespace hpcdl::cuda
