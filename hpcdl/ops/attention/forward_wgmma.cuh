#pragma once
// Attention forward on Hopper's tensor cores (.cu files). A block is one producer and kGroups consumer warpgroups of 64
// queries each; it iterates over tiles of queries, longest first among heads whose keys and values fit L2 together. The
// producer loads queries, keys and values through the copy engine; a consumer issues the scores of the next keys
// together with the product of the current probabilities and values, and computes the next softmax while the second
// product runs. Warpgroups take turns at the tensor cores, so that one multiplies while another exponentiates. Sources:
// Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

#include <algorithm>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/ops/attention/heads.cuh"
#include "hpcdl/ops/attention/softmax_rows.cuh"

namespace hpcdl::cuda {

struct ForwardProblem {
  float* lse = nullptr;  // (B, H, T)
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  bool causal = false;
  float scale = 0;                       // for scores, times log2 e
  int section = 0;                       // heads that are processed together
  int shift = 0;                         // kPacked: log2 of the number of heads that share a tile
  int window = 0;                        // kWindow: keys that a query sees, its own included
  const std::int32_t* begins = nullptr;  // kDocuments: (B, T), the first key that each query sees
};

/// (width, heads, tokens, batch) in tiles of 64 columns and `rows` rows: tokens of one head, or of `together` heads, whose
/// rows of a token follow each other.
inline TensorMap head_map(const View& x, int heads, std::int64_t width, int rows, int together = 1) {
  const Heads h = heads_of(x, width);
  return tensor_map(h.data, h.dtype, {width, heads, x[1], x[0]}, {h.head, h.token, h.batch},
                    {64, together, rows / together, 1});
}

/// f.template operator()<T>() with the 16-bit type of the call.
template <class F> void with_type(DType d, F&& f) {
  if (d == DType::f16) f.template operator()<f16>();
  else f.template operator()<bf16>();
}

/// Keys and values of the heads that are processed together should stay in L2, but short sections leave blocks idle.
inline int section_of(int batch, int heads, int kv_heads, std::int64_t keys, std::int64_t width) {
  const std::int64_t pair = 4 * keys * width, together = std::int64_t{40} << 20,
                     section = std::max<std::int64_t>(16, together / pair) * heads / kv_heads;
  return static_cast<int>(std::min<std::int64_t>(section, std::int64_t{batch} * heads));
}

/// One shape of the kernel: kKeys keys per step, kStages steps of keys and values in shared memory. kPacked: the rows of a
/// tile are queries of several heads with the same keys. kWindow: they see a window of them; kDocuments: those of their
/// document.
template <int kWidth_, int kGroups_, int kKeys_, int kStages_, bool kTurns_, int kBlocks_ = 1, bool kPacked_ = false,
          bool kWindow_ = false, bool kDocuments_ = false>
struct ForwardShape {
  static constexpr int kWidth = kWidth_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr bool kTurns = kTurns_, kPacked = kPacked_, kWindow = kWindow_, kDocuments = kDocuments_;
  // Short tiles need the queries of the next tile early; wide ones run no faster with them (H200).
  static constexpr int kQueryStages = kWidth == 64 ? 2 : 1;
  static constexpr int kQueries = 64 * kGroups, kThreads = 128 * kGroups + 128, kHalves = kWidth / 64;
  // Registers are initially divided evenly; the producer needs few.
  static constexpr int kProducer = kGroups == 3 ? 32 : 24, kConsumer = kBlocks == 2 ? 104 : kGroups == 3 ? 160 : 240;
  static constexpr int kQueryBytes = kQueries * kWidth * 2, kKeyBytes = kKeys * kWidth * 2;
};

/// The work of a tile of queries.
struct ForwardTile {
  int head, sequence, first, steps;  // query head; first query; the end of its steps of keys
  int begin_step = 0;                // kWindow, kDocuments: the first of them

  template <class Shape> static __device__ ForwardTile find(const ForwardProblem& p, int tile, int keys) {
    const int rows = (p.queries + Shape::kQueries - 1) / Shape::kQueries, all = p.batch * p.heads;
    const auto [head, from_last] = InGroups::find(tile, all, rows, p.section);
    ForwardTile t{head % p.heads, head / p.heads, (rows - 1 - from_last) * Shape::kQueries, 0};
    int seen = keys;
    if (p.causal) {
      const int end = t.first + Shape::kQueries + keys - p.queries;
      seen = end < keys ? end : keys;
    }
    t.steps = (seen + Shape::kKeys - 1) / Shape::kKeys;
    if constexpr (Shape::kDocuments) t.begin_step = t.first_key(p, t.first) / Shape::kKeys;
    return t;
  }
  /// kDocuments: the first key that a query sees, or the last query if there are fewer.
  __device__ int first_key(const ForwardProblem& p, int query) const {
    return p.begins[sequence * p.queries + ::min(query, p.queries - 1)];
  }
};

template <class Shape, int kStages>
using ForwardStages = Stages<Channel<kStages, Warpgroups<Shape::kGroups>, Reads::tensor_cores>>;
template <class Shape>
struct ForwardMemory
    : Arena<Room<char, (Shape::kQueryStages + 1) * Shape::kQueryBytes, 1024>,
            Room<char, 2 * Shape::kStages * Shape::kKeyBytes, 1024>, ForwardStages<Shape, Shape::kQueryStages>,
            ForwardStages<Shape, Shape::kStages>, ForwardStages<Shape, Shape::kStages>> {
  __device__ char* query(int stage) const { return this->template part<0>() + stage * Shape::kQueryBytes; }
  __device__ char* out() const { return query(Shape::kQueryStages); }
  __device__ char* key(int stage) const { return this->template part<1>() + stage * Shape::kKeyBytes; }
  __device__ char* value(int stage) const { return key(Shape::kStages + stage); }
  __device__ auto queries() const { return this->template part<2>(); }
  __device__ auto keys() const { return this->template part<3>(); }
  __device__ auto values() const { return this->template part<4>(); }
};

#if HPCDL_SM90A

/// Called by one thread.
template <class Shape>
__device__ void forward_produce(const ForwardMemory<Shape>& m, const TensorMap& q, const TensorMap& k,
                                const TensorMap& v, const ForwardProblem& p, int tiles) {
  auto ks = m.keys().to_put(), vs = m.values().to_put();
  auto qs = m.queries().to_put();
  const int keys = p.keys, group = p.heads / p.kv_heads;
  const auto load = [](char* to, int rows, const TensorMap& map, Barrier* full, int head, int row, int sequence) {
    for (int i = 0; i < Shape::kHalves; ++i) tma_load(to + i * rows * 128, map, full, 64 * i, head, row, sequence);
  };
  for (const int tile : Raster{tiles}) {
    const auto t = ForwardTile::find<Shape>(p, tile, keys);
    const int kv = t.head / group;
    load(m.query(qs.stage), Shape::kQueries, q, m.queries().put(qs, Shape::kQueryBytes), t.head, t.first, t.sequence);
    qs.next();
    const auto bring_keys = [&](int step) {
      load(m.key(ks.stage), Shape::kKeys, k, m.keys().put(ks, Shape::kKeyBytes), kv, step * Shape::kKeys, t.sequence);
      ks.next();
    };
    const auto bring_values = [&](int step) {
      load(m.value(vs.stage), Shape::kKeys, v, m.values().put(vs, Shape::kKeyBytes), kv, step * Shape::kKeys,
           t.sequence);
      vs.next();
    };
    bring_keys(t.steps - 1);
    for (int step = t.steps - 2; step >= t.begin_step; --step) bring_keys(step), bring_values(step + 1);
    bring_values(t.begin_step);
  }
}

template <class T, class Shape> struct ForwardConsumer {
  static constexpr int kScores = Shape::kKeys / 2, kOut = Shape::kWidth / 2;
  static constexpr bool kHides = Shape::kWindow || Shape::kDocuments;
  const ForwardMemory<Shape>& m;
  const ForwardProblem& p;
  int group, keys, offset;  // offset: query t sees keys 0 .. t + offset
  Leaving way;
  Ring<Shape::kStages> ks, vs;
  Ring<Shape::kQueryStages> qs;
  float out[kOut];
  unsigned probs[kScores / 8][4];
  RowSoftmax state;
  int first_keys[2];  // kDocuments: that this thread's queries see

  __device__ int row() const { return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4); }

  __device__ void issue_scores(float (&s)[kScores]) const {
    m.keys().get(ks);
    const auto a = wgmma_descriptor<Major::k>(m.query(qs.stage) + group * 64 * 128),
               b = wgmma_descriptor<Major::k>(m.key(ks.stage));
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kWidth / 16; ++c)
      wgmma<T, Major::k, Major::k>(s, a + (c / 4 * Shape::kQueries * 128 >> 4) + c % 4 * kStepK,
                                   b + (c / 4 * Shape::kKeys * 128 >> 4) + c % 4 * kStepK, c > 0);
    wgmma_commit();
  }
  __device__ void issue_out() {
    m.values().get(vs);
    const auto b = wgmma_descriptor<Major::mn>(m.value(vs.stage), Shape::kKeys);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < Shape::kKeys / 16; ++c) wgmma<T, Major::mn>(out, probs[c], b + c * kStepMn, true);
    wgmma_commit();
  }
  __device__ void done_keys() {
    m.keys().done(ks.stage);
    ks.next();
  }
  __device__ void done_values() {
    m.values().done(vs.stage);
    vs.next();
  }
  __device__ void mask(float (&s)[kScores], const ForwardTile& t, int step) const {
    const int column = step * Shape::kKeys + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = group * 64 + row() + 8 * h,
                last = p.causal ? t.first + (Shape::kPacked ? place >> p.shift : place) + offset : keys - 1,
                end = last < keys - 1 ? last : keys - 1,
                begin = Shape::kDocuments ? first_keys[h]
                        : Shape::kWindow  ? last - p.window + 1
                                          : 0;
#pragma unroll
      for (int j = 0; j < Shape::kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (const int key = column + 8 * j + i; key > end || (kHides && key < begin))
            s[4 * j + 2 * h + i] = -__builtin_inff();
    }
  }
  /// Computes the scores of `step` while the previous step is multiplied by its values.
  template <bool kMasked> __device__ void step(const ForwardTile& t, int step) {
    float s[kScores], shrink[2];
    if constexpr (Shape::kTurns) named_sync(1 + group, 256);
    issue_scores(s);
    issue_out();
    if constexpr (Shape::kTurns) named_arrive(1 + (group + 1) % Shape::kGroups, 256);
    wgmma_wait<1>();
    wgmma_pin(s);
    done_keys();
    if constexpr (kMasked) mask(s, t, step);
    state.update(s, p.scale, shrink);
    wgmma_wait<0>();
    wgmma_pin(out);
    done_values();
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= shrink[i / 2 % 2];
    pack_operand<T>(probs, s);
  }
  /// before_values(): called once the first scores have been computed, before any values are multiplied.
  template <class F> __device__ void attend(const ForwardTile& t, F&& before_values) {
    state = {};
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] = 0;
    if constexpr (Shape::kDocuments)
      for (int h = 0; h < 2; ++h) first_keys[h] = t.first_key(p, t.first + group * 64 + row() + 8 * h);
    m.queries().get(qs);
    float s[kScores], shrink[2];
    issue_scores(s);
    wgmma_wait<0>();
    wgmma_pin(s);
    done_keys();
    mask(s, t, t.steps - 1);
    state.update(s, p.scale, shrink);
    pack_operand<T>(probs, s);
    before_values();
    int n = t.steps - 2;
    // Steps that the first query of this tile sees in full.
    const int whole = p.causal ? (t.first + offset + 1) / Shape::kKeys : t.steps;
    for (; n >= ::max(whole, t.begin_step); --n) step<true>(t, n);
    // Those of which its last query sees all keys.
    const int last = t.first + (Shape::kPacked ? (Shape::kQueries - 1) >> p.shift : Shape::kQueries - 1) + offset,
              first_key = Shape::kDocuments ? t.first_key(p, last)
                          : Shape::kWindow  ? ::max(last - p.window + 1, 0)
                                            : 0,
              inside = (first_key + Shape::kKeys - 1) / Shape::kKeys;
    for (; n >= inside; --n) step<false>(t, n);
    if constexpr (kHides)
      for (; n >= t.begin_step; --n) step<true>(t, n);
    m.queries().done(qs.stage);
    qs.next();
    issue_out();
    wgmma_wait<0>();
    wgmma_pin(out);
    done_values();
  }
  /// Goes through shared memory, so that the copy engine writes whole rows and stops at the end of the sequence.
  __device__ void store(const ForwardTile& t, const TensorMap& map) const {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(state.row[h].sum);
      inverse[h] = 1.0f / sum;
      const int at = t.first + group * 64 + row() + 8 * h;
      if (p.lse && threadIdx.x % 4 == 0 && at < p.queries)
        p.lse[(static_cast<std::int64_t>(t.sequence) * p.heads + t.head) * p.queries + at] =
            (state.row[h].top * p.scale + log2f(sum)) * 0.6931471805599453f;
    }
    char* to = m.out() + group * 64 * Shape::kWidth * 2;
    way.reuse<0>();
#pragma unroll
    for (int i = 0; i < Shape::kHalves; ++i) {
      float v[32];
#pragma unroll
      for (int e = 0; e < 32; ++e) v[e] = out[32 * i + e] * inverse[e / 2 % 2];
      put_piece<T>(to + i * kPieceBytes, v);
    }
    way.leave([&] {
      for (int i = 0; i < Shape::kHalves; ++i)
        tma_store(map, to + i * kPieceBytes, 64 * i, t.head, t.first + group * 64, t.sequence);
    });
  }
};

#endif

/// Tensor maps are (width, heads, tokens, batch) with boxes of (64, 1, rows, 1): kQueries rows of q, kKeys of k and v,
/// 64 of out. Elements of a box beyond the width of a head are loaded as 0 and not stored.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    attention_forward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                            const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out,
                            const __grid_constant__ ForwardProblem p) {
#if HPCDL_SM90A
  const ForwardMemory<Shape> m;
  const int tiles = p.batch * p.heads * ((p.queries + Shape::kQueries - 1) / Shape::kQueries);
  m.start();
  const auto consume = [&](int group) {
    const int keys = p.keys;
    ForwardConsumer<T, Shape> c{
        .m = m, .p = p, .group = group, .keys = keys, .offset = keys - p.queries, .way = {.barrier = 8 + group}};
    if (Shape::kTurns && group == Shape::kGroups - 1) named_arrive(1, 256);
    for (const int tile : Raster{tiles}) {
      const auto t = ForwardTile::find<Shape>(p, tile, keys);
      c.attend(t, [] {});
      c.store(t, out);
    }
    if (c.way.leader()) tma_wait<0>();
  };
  roles<Producers<Shape::kProducer>, Consumers<Shape::kGroups, Shape::kConsumer>>(
      [&](int) { forward_produce<Shape>(m, q, k, v, p, tiles); }, consume);
#endif
}

}  // namespace hpcdl::cuda
