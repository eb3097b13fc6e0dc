#include "hpcdl/ops/attention/attention.h"

#include "hpcdl/core/pool.h"
#include "hpcdl/ops/attention/tile.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kQueries = 64, kKeys = 64, kMaxDim = Attention::kMaxHeadDim;

/// Work of one thread on one block of queries of one head.
struct Block {
  alignas(64) float q[kMaxDim * kQueries];    // q^T, scaled: (D, queries)
  alignas(64) float out[kMaxDim * kQueries];  // (D, queries), not yet divided by sum
  alignas(64) float p[kKeys * kQueries];      // scores, then probabilities: (keys, queries)
  alignas(64) float k[kKeys * kMaxDim], v[kKeys * kMaxDim];  // copies, see float_rows()
  alignas(64) float top[kQueries], sum[kQueries];
};

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

/// Scores (times log2 e) of `keys` keys -> 2^(score - top), with the running maximum and sum; rescales `out` where the
/// maximum rose. `first`: the position of the first key relative to the first query; keys behind a lane's own position
/// are masked.
template <class Isa>
[[gnu::flatten]] void softmax_block(Isa, Block& w, std::int64_t block_keys, std::int64_t first, bool masked, bool fresh, std::int64_t lanes, std::int64_t d) {
  using V = simd::Vec<Isa>;
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  for (std::int64_t l = 0; l < lanes; l += V::N) {
    const V position = V::load(iota) + V(static_cast<float>(l - first));  // of the lanes, relative to key 0 of the block
    const std::int64_t keys = masked ? attn::seen_by_span(l, lanes, block_keys, first) : block_keys;
    float* p = w.p + l;
    V top = fresh ? V(-__builtin_inff()) : V::load(w.top + l);
    const V before = top;
    if (masked) {
      for (std::int64_t j = 0; j < keys; ++j) {
        const V s = select(position < V(static_cast<float>(j)), V(-__builtin_inff()), V::load(p + j * kQueries));
        s.store(p + j * kQueries);
        top = max(s, top);
      }
    } else {
      for (std::int64_t j = 0; j < keys; ++j) top = max(V::load(p + j * kQueries), top);
    }
    V sum(0.0f);
    for (std::int64_t j = 0; j < keys; ++j) {
      const V e = exp2(V::load(p + j * kQueries) - top);
      e.store(p + j * kQueries);
      sum = sum + e;
    }
    top.store(w.top + l);
    if (fresh) {
      sum.store(w.sum + l);
      continue;
    }
    const V shrink = exp2(before - top);
    fma(V::load(w.sum + l), shrink, sum).store(w.sum + l);
    for (std::int64_t i = 0; i < d; ++i) (V::load(w.out + i * kQueries + l) * shrink).store(w.out + i * kQueries + l);
  }
}

struct Extent {
  std::int64_t queries, keys, d;
  std::int64_t offset;  // query t stands at position offset + t among the keys
  bool causal;
  float scale;
};

template <class Isa, class T, class K>
void query_block(Isa isa, Block& w, attn::Rows<T> out, float* lse, attn::Rows<const T> q, attn::Rows<const K> k, attn::Rows<const K> v,
                 std::int64_t t0, const Extent& e) {
  using V = simd::Vec<Isa>;
  const std::int64_t rows = e.queries - t0 < kQueries ? e.queries - t0 : kQueries;
  const std::int64_t lanes = (rows + V::N - 1) / V::N * V::N, at = e.offset + t0;
  attn::transpose_in(isa, w.q, kQueries, attn::Rows<const T>{q[t0], q.stride}, rows, lanes, e.d, e.scale * kLog2e);
  const std::int64_t end = e.causal && at + rows < e.keys ? at + rows : e.keys;
  for (std::int64_t j0 = 0; j0 < end; j0 += kKeys) {
    const std::int64_t keys = end - j0 < kKeys ? end - j0 : kKeys;
    const bool masked = e.causal && j0 + keys > at + 1;
    const auto kf = attn::float_rows(isa, w.k, attn::Rows<const K>{k[j0], k.stride}, keys, e.d, attn::Read::along);
    attn::multiply_scores(isa, w.p, kQueries, {kf.base, kf.stride, 1}, w.q, kQueries, keys, lanes, e.d, masked, j0 - at);
    softmax_block(isa, w, keys, j0 - at, masked, j0 == 0, lanes, e.d);
    const auto vf = attn::float_rows(isa, w.v, attn::Rows<const K>{v[j0], v.stride}, keys, e.d, attn::Read::across);
    attn::multiply_weights(isa, w.out, kQueries, {vf.base, 1, vf.stride}, w.p, kQueries, e.d, lanes, keys, j0 > 0, masked, j0 - at);
  }
  for (std::int64_t l = 0; l < lanes; l += V::N) {
    const V sum = V::load(w.sum + l);
    if (lse) fma(V::load(w.top + l), V(kLn2), log(sum)).store(lse + t0 + l, static_cast<int>(rows - l < V::N ? rows - l : V::N));
    (V(1.0f) / sum).store(w.sum + l);
  }
  attn::transpose_out(isa, attn::Rows<T>{out[t0], out.stride}, w.out, kQueries, rows, e.d, w.sum, false);
}

}  // namespace

template <class Isa>
void attention(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, std::int64_t position, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, queries = q[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads, blocks = (queries + kQueries - 1) / kQueries;
  const std::int64_t keys = a.cached ? position + queries : k[1];
  const Extent e{queries, keys, d, a.cached ? position : keys - queries, a.causal || a.cached,
                 a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d))};
  const auto run = [&]<class T, class K>() {
    // Long blocks (the last queries, which see most keys) first, so that threads end together.
    parallel_tasks(pool, q[0] * heads * blocks, [&](std::int64_t i) {
      const auto block = blocks - 1 - i / (q[0] * heads), b = i % (q[0] * heads) / heads, h = i % heads;
      const auto g = h * kv_heads / heads;
      Block w;
      query_block(isa, w, attn::head_rows<T>(out, b, h, d), lse ? lse.ptr<float>() + (b * heads + h) * queries : nullptr,
                  attn::head_rows<T>(q, b, h, d), attn::head_rows<K>(k, b, g, d), attn::head_rows<K>(v, b, g, d), block * kQueries, e);
    });
  };
  visit_dtype(q.dtype(), [&]<class T>() { visit_dtype(k.dtype(), [&]<class K>() { run.template operator()<T, K>(); }); });
}

template void attention(simd::Isa, Pool&, Tensor, Tensor, View, View, View, std::int64_t, const Attention::Args&);

}  // namespace hpcdl::cpu
