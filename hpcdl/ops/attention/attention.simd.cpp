#include "hpcdl/ops/attention/attention.h"

#include "hpcdl/core/pool.h"
#include "hpcdl/ops/attention/pack.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

using attn::kKeys, attn::kQueries;
constexpr std::int64_t kMaxDim = Attention::kMaxHeadDim;

/// Blocks of queries that meet a block of keys while it is in the cache.
constexpr std::int64_t kTogether = 4;

/// A block of queries of one head. W: words of the scores.
template <class W> struct Queries {
  alignas(64) W q[kMaxDim / attn::kGroup<W> * kQueries];  // q^T: (words of D, queries)
  alignas(64) float out[kMaxDim * kQueries];              // (D, queries), not yet divided by sum
  alignas(64) float top[kQueries], sum[kQueries];
};

/// Weights times v are always summed in f32 products: rounding probabilities to bf16 would cost more accuracy than the storage
/// of the result does.
template <class W> struct Work {
  Queries<W> queries[kTogether];
  alignas(64) float p[kKeys * kQueries];                  // scores, then probabilities: (keys, queries)
  alignas(64) W k[kKeys * kMaxDim / attn::kGroup<W>];     // row words
  alignas(64) float v[kKeys * kMaxDim];                   // column words
};

constexpr float kLog2e = 1.4426950408889634f;

/// NV vectors of queries: scores of `keys` keys -> 2^(rate (score - top)), with the running maximum and sum; rescales `out`
/// where the maximum rose. Lane l + i of a masked block sees keys 0 .. l + i - first.
template <class Isa, int NV, class W>
[[gnu::noinline]] void softmax_lanes(Isa, Queries<W>& w, float* scores, std::int64_t l, std::int64_t keys, const attn::Sight& s, float rate, bool fresh, std::int64_t d) {
  using V = simd::Vec<Isa>;
  constexpr float kInf = __builtin_inff();
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  V position[NV], before[NV], top[NV], sum[NV], shift[NV];
  for (int v = 0; v < NV; ++v) {
    position[v] = V::load(iota) + V(static_cast<float>(l + v * V::N - s.first));
    top[v] = before[v] = fresh ? V(-kInf) : V::load(w.top + l + v * V::N);
    sum[v] = V(0.0f);
  }
  float* const p = scores + l;
  const auto sweep = [&](auto step) {
    for (std::int64_t j = 0; j < keys; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) step(j, v, p + j * kQueries + v * V::N);
  };
  const auto hidden = [&](std::int64_t j, int v) { return position[v] < V(static_cast<float>(j)); };
  if (s.masked) sweep([&](std::int64_t j, int v, float* at) { top[v] = max(select(hidden(j, v), V(-kInf), V::load(at)), top[v]); });
  else sweep([&](std::int64_t, int v, float* at) { top[v] = max(V::load(at), top[v]); });
  for (int v = 0; v < NV; ++v) shift[v] = V(0.0f) - top[v] * V(rate);
  const auto weigh = [&](std::int64_t j, int v, float* at, auto mask) {
    V e = exp2(fma(V::load(at), V(rate), shift[v]));
    if constexpr (mask) e = select(hidden(j, v), V(0.0f), e);
    e.store(at);
    sum[v] = sum[v] + e;
  };
  if (s.masked) sweep([&](std::int64_t j, int v, float* at) { weigh(j, v, at, std::true_type{}); });
  else sweep([&](std::int64_t j, int v, float* at) { weigh(j, v, at, std::false_type{}); });
  for (int v = 0; v < NV; ++v) {
    const std::int64_t at = l + v * V::N;
    const V shrink = fresh ? V(0.0f) : exp2(fma(before[v], V(rate), shift[v]));
    top[v].store(w.top + at);
    if (fresh) sum[v].store(w.sum + at);
    else fma(V::load(w.sum + at), shrink, sum[v]).store(w.sum + at);
    if (fresh || reduce_min(shrink) == 1) continue;
    for (std::int64_t i = 0; i < d; ++i) (V::load(w.out + i * kQueries + at) * shrink).store(w.out + i * kQueries + at);
  }
}

struct Extent {
  std::int64_t queries, keys, d;
  std::int64_t offset;  // query t stands at position offset + t among the keys
  bool causal;
  float scale;
};

/// The first `rows` queries of a block: out and lse.
template <class Isa, class W, class T>
void finish(Isa isa, Queries<W>& w, attn::Rows<T> out, float* lse, std::int64_t rows, const Extent& e) {
  using V = simd::Vec<Isa>;
  for (std::int64_t l = 0; l < rows; l += V::N) {
    const V sum = V::load(w.sum + l);
    if (lse) fma(V::load(w.top + l), V(e.scale), log(sum)).store(lse + l, attn::lanes_at<Isa>(rows, l));
    (V(1.0f) / sum).store(w.sum + l);
  }
  attn::transpose_out(isa, out, w.out, rows, e.d, w.sum, false);
}

/// Queries [t0, t1) of one head, at most kTogether blocks of them. How many does not change a bit of the result.
template <class Isa, class T, class K>
void query_blocks(Isa isa, attn::Rows<T> out, float* lse, attn::Rows<const T> q, attn::Rows<const K> k, attn::Rows<const K> v, std::int64_t t0,
                  std::int64_t t1, const Extent& e) {
  using V = simd::Vec<Isa>;
  using W = std::conditional_t<std::is_same_v<T, K>, attn::WordOf<Isa, T>, float>;
  Work<W> work;
  const std::int64_t words = (e.d + attn::kGroup<W> - 1) / attn::kGroup<W>;
  const auto blocks = [&](auto f) {  // f(block, its first query, its queries, the end of the keys they see)
    for (std::int64_t t = t0, i = 0; t < t1; t += kQueries, ++i) {
      const std::int64_t rows = t1 - t < kQueries ? t1 - t : kQueries, past = e.offset + t + rows;
      f(work.queries[i], t, rows, e.causal && past < e.keys ? past : e.keys);
    }
  };
  const auto up = [](std::int64_t rows) { return (rows + V::N - 1) / V::N * V::N; };
  std::int64_t last = 0;
  blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t end) {
    attn::transpose_in(isa, w.q, q.from(t), rows, up(rows), e.d);
    last = end;
  });
  for (std::int64_t j0 = 0; j0 < last; j0 += kKeys) {
    const std::int64_t j1 = last - j0 < kKeys ? last : j0 + kKeys, next = last - j1 < kKeys ? last - j1 : kKeys;
    const auto kw = attn::row_words(isa, work.k, k.from(j0), j1 - j0, e.d);
    const auto vw = attn::column_words(isa, work.v, v.from(j0), j1 - j0, e.d);
    attn::prefetch(k.from(j1), next, e.d);  // no hardware prefetcher follows rows that lie far apart
    attn::prefetch(v.from(j1), next, e.d);
    blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t end) {
      if (end <= j0) return;
      const std::int64_t at = e.offset + t;
      const attn::Sight sight{(end < j1 ? end : j1) - j0, up(rows), j0 - at, e.causal && j1 > at + 1};
      attn::multiply_scores(isa, work.p, kw, w.q, words, sight);
      attn::for_spans(sight, [&](std::int64_t l, std::int64_t count, std::int64_t seen) {
        attn::in_chunks<4>(count / V::N, [&](auto nv, std::int64_t i) {
          softmax_lanes<Isa, nv>(isa, w, work.p, l + i * V::N, seen, sight, e.scale * kLog2e, j0 == 0, e.d);
        });
      });
      attn::multiply_weights(isa, w.out, vw, work.p, e.d, j0 > 0, sight);
    });
  }
  blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t) { finish(isa, w, out.from(t), lse ? lse + t : nullptr, rows, e); });
}

}  // namespace

template <class Isa>
void attention(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, std::int64_t position, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, queries = q[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads, blocks = (queries + kQueries - 1) / kQueries;
  const std::int64_t keys = a.cached ? position + queries : k[1];
  const Extent e{queries, keys, d, a.cached ? position : keys - queries, a.causal || a.cached,
                 a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d))};
  // Some tasks for each thread, so that all end together.
  const std::int64_t fair = q[0] * heads * blocks / (4 * pool.threads()), together = fair < 1 ? 1 : fair < kTogether ? fair : kTogether;
  const std::int64_t tasks = (blocks + together - 1) / together;
  const auto run = [&]<class T, class K>() {
    // Head by head, so that its keys and values stay in the cache; in each the last queries, which see most keys, first.
    parallel_tasks(pool, q[0] * heads * tasks, [&](std::int64_t i) {
      const auto t0 = (tasks - 1 - i % tasks) * together * kQueries, b = i / tasks / heads, h = i / tasks % heads, g = h * kv_heads / heads;
      query_blocks(isa, attn::head_rows<T>(out, b, h, d), lse ? lse.ptr<float>() + (b * heads + h) * queries : nullptr,
                   attn::head_rows<T>(q, b, h, d), attn::head_rows<K>(k, b, g, d), attn::head_rows<K>(v, b, g, d), t0,
                   queries < t0 + together * kQueries ? queries : t0 + together * kQueries, e);
    });
  };
  visit_dtype(q.dtype(), [&]<class T>() { visit_dtype(k.dtype(), [&]<class K>() { run.template operator()<T, K>(); }); });
}

template void attention(simd::Isa, Pool&, Tensor, Tensor, View, View, View, std::int64_t, const Attention::Args&);

}  // namespace hpcdl::cpu
