// For one key/value head: every block of queries of every query head that shares it, against every block of keys.
// Probabilities are recomputed, transposed as in the forward pass; dq is summed per block of queries, dk and dv over
// all.

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/pack.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/pool.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

using attn::kKeys, attn::kQueries;
constexpr std::int64_t kMaxDim = Attention::kMaxHeadDim;
constexpr float kLog2e = 1.4426950408889634f;

/// Blocks of queries that use a block of keys while it is cached.
constexpr std::int64_t kTogether = 2;

/// A block of queries of one head.
template <class W> struct Queries {
  static constexpr std::int64_t kGroup = attn::kGroup<W>;
  alignas(64) W q[kMaxDim / kGroup * kQueries];     // q^T: (words of D, queries)
  alignas(64) W dout[kMaxDim / kGroup * kQueries];  // dout^T: (words of D, queries)
  alignas(64) W q_columns[kQueries / kGroup * kMaxDim],
      dout_columns[kQueries / kGroup * kMaxDim];  // (words of queries, D)
  alignas(64) float dq[kMaxDim * kQueries];       // (D, queries)
  alignas(64) float lse[kQueries] /* times log2 e */, delta[kQueries] /* times scale */;
  // Whether any query is far (far_lse.h): `top` then holds the largest score of each far query, whose lse is the
  // logarithm of its sum alone, and 0 for the others.
  bool far;
  alignas(64) float top[kQueries], sum[kQueries];
};

/// Pairs: p and ds are rounded to bf16, like the gradients that they are multiplied by, and summed in f32.
template <class W> struct Work {
  static constexpr std::int64_t kGroup = attn::kGroup<W>;
  Queries<W> queries[kTogether];
  alignas(64) float p[kKeys * kQueries];   // (keys, queries): scores, then probabilities (keys, words of queries)
  alignas(64) float ds[kKeys * kQueries];  // the same: do v^T, then ds
  alignas(64) W ds_columns[kKeys / kGroup * kQueries];  // (words of keys, queries); pairs only, floats use ds
  alignas(64) W k[kKeys / kGroup * kMaxDim], v[kKeys / kGroup * kMaxDim], k_columns[kKeys / kGroup * kMaxDim];
  alignas(64) float sum[kKeys * kMaxDim];  // partial sums of dk or dv
};

template <class T> struct Head {
  attn::Rows<const T> q, out, dout;
  attn::Rows<T> dq;
  const float* lse;
  bool want_dq, add_dq;
};

struct Shared {
  attn::Rows<float> dk, dv;  // base null: not requested
  std::int64_t queries, keys, d, offset;
  bool causal;
  float scale;
  std::int64_t window;  // keys that a query sees; 0: all
  float cap;            // of scores before they are scaled; 0: none
  bool part;            // lse is of more keys than these

  /// The first block of keys that the query at this position reads.
  std::int64_t first_block(std::int64_t position) const {
    return window > 0 && position >= window ? (position + 1 - window) / kKeys * kKeys : 0;
  }
  /// `n` keys from j0 on, for `rows` queries from t0 on.
  attn::Sight sight(std::int64_t j0, std::int64_t n, std::int64_t t0, std::int64_t rows, std::int64_t lanes) const {
    return attn::Sight::of(n, lanes, j0, offset + t0, rows, causal, window);
  }
};

/// p: scores -> probabilities; ds: do v^T -> scale p (ds - delta); both as words.
template <bool kFar, class Isa, class W>
[[gnu::flatten]] void probabilities(Isa isa, Work<W>& w, const Queries<W>& q, const attn::Sight& s, float scale,
                                    float cap) {
  using V = simd::Vec<Isa>;
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  const V rate(scale * kLog2e), zero(0.0f);
  const auto vector = [&](auto mask, std::int64_t l, std::int64_t seen) {
    const V position = V::load(iota) + V(static_cast<float>(l - s.first));
    const V lse = zero - V::load(q.lse + l), delta = zero - V::load(q.delta + l);
    const auto compute = [&](std::int64_t j, V& p, V& ds) {
      p = ds = zero;
      if (j >= seen) return;
      V score = V::load(w.p + j * kQueries + l);
      const V part = cap > 0 ? score / V(cap) : zero;
      if constexpr (kFar) score = score - V::load(q.top + l);
      p = exp2(fma(score, rate, lse));
      if constexpr (mask.kAny) p = mask.hide(position, static_cast<float>(j), zero, p);
      ds = p * fma(V::load(w.ds + j * kQueries + l), V(scale), delta);
      if (cap > 0) ds = ds * (V(1.0f) - part * part);
    };
    for (std::int64_t j = 0; j < attn::padded<W>(s.keys); j += attn::kGroup<W>) {
      V p, ds;
      compute(j, p, ds);
      if constexpr (std::is_same_v<W, float>) {
        p.store(w.p + j * kQueries + l);
        ds.store(w.ds + j * kQueries + l);
      } else {
#if defined(HPCDL_SIMD_AVX512)
        // A row of bf16 overwrites the first half of the row of floats: lanes up to l, which have been read.
        V p1, ds1;
        compute(j + 1, p1, ds1);
        const auto store = [&](float* row, V x) {
          const auto half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<bf16*>(row) + l), half);
          return half;
        };
        store(w.p + j * kQueries, p);
        const auto first = store(w.ds + j * kQueries, ds);
        store(w.p + (j + 1) * kQueries, p1);
        const auto second = store(w.ds + (j + 1) * kQueries, ds1);
        _mm512_storeu_si512(w.ds_columns + j / 2 * kQueries + l, attn::interleave(first, second));
#endif
      }
    }
  };
  attn::with_mask(isa, s, [&](auto mask) {
    attn::for_spans(s, [&](std::int64_t l, std::int64_t lanes, std::int64_t seen) {
      for (std::int64_t i = l; i < l + lanes; i += V::N) vector(mask, i, seen);
    });
  });
}

/// to[j][0, d) += rows (keys, d up to whole vectors).
template <class Isa> void add_rows(Isa, attn::Rows<float> to, const float* from, std::int64_t keys, std::int64_t d) {
  using V = simd::Vec<Isa>;
  const std::int64_t up = (d + V::N - 1) / V::N * V::N;
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t i = 0; i < d; i += V::N) {
      const int n = attn::lanes_at<Isa>(d, i);
      (V::load(from + j * up + i) + V::load(to[j] + i, n)).store(to[j] + i, n);
    }
}

/// to (keys, d) += weights (keys, words of queries) b (words of queries, d).
template <class Isa, class W>
void add_product(Isa isa, attn::Rows<float> to, Work<W>& w, const float* weights, attn::Words<W> b, std::int64_t keys,
                 std::int64_t d, std::int64_t words) {
  const attn::Words<W> a{reinterpret_cast<const W*>(weights), kQueries, 1};
  if (d % simd::Vec<Isa>::N == 0 && attn::rows_of<W>(keys) == keys)
    return attn::multiply(isa, to.base, to.stride, a, b.a, b.ak, keys, d, words, true);
  attn::multiply(isa, w.sum, b.ak, a, b.a, b.ak, keys, d, words, false);
  add_rows(isa, to, w.sum, keys, d);
}

/// Queries [t0, t0 + rows).
template <class Isa, class W, class T>
void load_queries(Isa isa, Queries<W>& w, const Head<T>& h, std::int64_t t0, std::int64_t rows, std::int64_t lanes,
                  const Shared& s) {
  using V = simd::Vec<Isa>;
  attn::transpose_in(isa, w.q, h.q.from(t0), rows, lanes, s.d);
  attn::transpose_in(isa, w.dout, h.dout.from(t0), rows, lanes, s.d);
  if (s.dk.base) attn::across_rows(isa, w.q_columns, h.q.from(t0), rows, s.d);
  if (s.dv.base) attn::across_rows(isa, w.dout_columns, h.dout.from(t0), rows, s.d);
  for (std::int64_t r = 0; r < lanes; ++r) {
    V dot(0.0f);
    if (r < rows)
      for (std::int64_t i = 0; i < s.d; i += V::N) {
        const int n = attn::lanes_at<Isa>(s.d, i);
        dot = fma(V::load(h.out[t0 + r] + i, n), V::load(h.dout[t0 + r] + i, n), dot);
      }
    w.delta[r] = s.scale * reduce_add(dot);
    w.lse[r] = r < rows ? h.lse[t0 + r] * kLog2e : __builtin_inff();  // lanes after the last query: p = 0
  }
  w.far = false;
  for (std::int64_t r = 0; r < rows && !s.part; ++r) w.far |= is_far_lse(h.lse[t0 + r]);
}

/// Updates the largest score of each query and the sum relative to it with one more block of keys.
template <class Isa, class W>
void fold_scores(Isa isa, const Work<W>& work, Queries<W>& w, const attn::Sight& s, float scale) {
  using V = simd::Vec<Isa>;
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  const V rate(scale * kLog2e), least(-__FLT_MAX__);
  const auto vector = [&](auto mask, std::int64_t l, std::int64_t seen) {
    const V position = V::load(iota) + V(static_cast<float>(l - s.first));
    V top = V::load(w.top + l), sum = V::load(w.sum + l);
    for (std::int64_t j = 0; j < seen; ++j) {
      V x = V::load(work.p + j * kQueries + l);
      const auto here = static_cast<float>(j);
      if constexpr (mask.kAny) x = mask.hide(position, here, least, x);
      const V higher = max(x, top);
      V e = exp2((x - higher) * rate);
      if constexpr (mask.kAny) e = mask.hide(position, here, V(0.0f), e);
      sum = fma(sum, exp2((top - higher) * rate), e);
      top = higher;
    }
    top.store(w.top + l), sum.store(w.sum + l);
  };
  attn::with_mask(isa, s, [&](auto mask) {
    attn::for_spans(s, [&](std::int64_t l0, std::int64_t lanes, std::int64_t seen) {
      for (std::int64_t l = l0; l < l0 + lanes; l += V::N) vector(mask, l, seen);
    });
  });
}

/// Tops and sums of the far queries of [t0, t0 + rows), which see keys before `end`.
template <class Isa, class W, class T>
void find_far(Isa isa, Work<W>& work, Queries<W>& w, const Head<T>& h, attn::Rows<const T> k, std::int64_t t0,
              std::int64_t rows, std::int64_t lanes, std::int64_t end, const Shared& s) {
  using V = simd::Vec<Isa>;
  for (std::int64_t r = 0; r < lanes; ++r) w.top[r] = -__FLT_MAX__, w.sum[r] = 0;
  for (std::int64_t j0 = s.first_block(s.offset + t0); j0 < end; j0 += kKeys) {
    const std::int64_t j1 = end - j0 < kKeys ? end : j0 + kKeys;
    const auto sight = s.sight(j0, j1 - j0, t0, rows, lanes);
    attn::multiply_scores(isa, work.p, attn::row_words(isa, work.k, k.from(j0), j1 - j0, s.d), w.q,
                          attn::words_of<W>(s.d), sight);
    if (s.cap > 0) attn::cap_scores(isa, work.p, s.cap, sight);
    fold_scores(isa, work, w, sight, s.scale);
  }
  for (std::int64_t r = 0; r < lanes; ++r) {
    if (r < rows && is_far_lse(h.lse[t0 + r])) w.lse[r] = reduce_max(log(V(w.sum[r]))) * kLog2e;
    else w.top[r] = 0;
  }
}

/// Row and column words of a block of keys and values.
template <class W> struct KeyBlock {
  attn::Words<W> k, k_columns, v;
  attn::Rows<float> dk, dv;
};

/// One block of queries against one block of keys. add: dq has been begun.
template <class Isa, class W>
void block_pair(Isa isa, Work<W>& work, Queries<W>& w, const KeyBlock<W>& b, const attn::Sight& sight,
                std::int64_t rows, bool want_dq, bool add, const Shared& s) {
  constexpr std::int64_t N = simd::Vec<Isa>::N;
  const std::int64_t up = (s.d + N - 1) / N * N;
  attn::multiply_scores(isa, work.p, b.k, w.q, attn::words_of<W>(s.d), sight);
  if (s.cap > 0) attn::cap_scores(isa, work.p, s.cap, sight);
  attn::multiply_scores(isa, work.ds, b.v, w.dout, attn::words_of<W>(s.d), sight);
  if (w.far) probabilities<true>(isa, work, w, sight, s.scale, s.cap);
  else probabilities<false>(isa, work, w, sight, s.scale, s.cap);
  if (want_dq) {
    const W* ds_columns = attn::kGroup<W> == 1 ? reinterpret_cast<const W*>(work.ds) : work.ds_columns;
    attn::multiply_weights(isa, w.dq, b.k_columns, ds_columns, s.d, add, sight);
  }
  if (b.dv.base)
    add_product(isa, b.dv, work, work.p, {w.dout_columns, 1, up}, sight.keys, s.d, attn::words_of<W>(rows));
  if (b.dk.base) add_product(isa, b.dk, work, work.ds, {w.q_columns, 1, up}, sight.keys, s.d, attn::words_of<W>(rows));
}

/// Queries [t0, t1), at most kTogether blocks of them.
template <class Isa, class W, class T>
void query_blocks(Isa isa, Work<W>& work, const Head<T>& h, attn::Rows<const T> k, attn::Rows<const T> v,
                  std::int64_t t0, std::int64_t t1, const Shared& s) {
  using V = simd::Vec<Isa>;
  const auto blocks = [&](auto f) {  // f(block, its first query, its queries, the end of the keys they see)
    for (std::int64_t t = t0, i = 0; t < t1; t += kQueries, ++i) {
      const std::int64_t rows = t1 - t < kQueries ? t1 - t : kQueries, past = s.offset + t + rows;
      f(work.queries[i], t, rows, s.causal && past < s.keys ? past : s.keys);
    }
  };
  const auto up = [](std::int64_t rows) { return (attn::padded<W>(rows) + V::N - 1) / V::N * V::N; };
  std::int64_t last = 0;
  blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t end) {
    load_queries(isa, w, h, t, rows, up(rows), s);
    if (w.far) find_far(isa, work, w, h, k, t, rows, up(rows), end, s);
    last = end;
  });
  const auto at = [](attn::Rows<float> r, std::int64_t j) { return r.base ? r.from(j) : r; };
  for (std::int64_t j0 = s.first_block(s.offset + t0); j0 < last; j0 += kKeys) {
    const std::int64_t j1 = last - j0 < kKeys ? last : j0 + kKeys, n = j1 - j0,
                       next = last - j1 < kKeys ? last - j1 : kKeys, d = s.d;
    const KeyBlock<W> b{attn::row_words(isa, work.k, k.from(j0), n, d),
                        attn::column_words(isa, work.k_columns, k.from(j0), n, d),
                        attn::row_words(isa, work.v, v.from(j0), n, d), at(s.dk, j0), at(s.dv, j0)};
    attn::prefetch(k.from(j1), next, d);  // hardware prefetchers do not follow rows that are far apart
    attn::prefetch(v.from(j1), next, d);
    if (s.dk.base) attn::prefetch(s.dk.from(j1), next, d);
    if (s.dv.base) attn::prefetch(s.dv.from(j1), next, d);
    blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t end) {
      const std::int64_t begin = s.first_block(s.offset + t);
      if (end <= j0 || j0 < begin) return;
      const auto sight = s.sight(j0, (end < j1 ? end : j1) - j0, t, rows, up(rows));
      block_pair(isa, work, w, b, sight, rows, h.want_dq, j0 > begin, s);
    });
  }
  if (h.want_dq)
    blocks([&](auto& w, std::int64_t t, std::int64_t rows, std::int64_t) {
      attn::transpose_out(isa, h.dq.from(t), w.dq, rows, s.d, nullptr, h.add_dq);
    });
}

/// Where the f32 sums of one head of a gradient are accumulated: in place, or in the scratch.
template <class T>
attn::Rows<float> sums(const Grad& g, const Tensor& scratch, int which, std::int64_t b, std::int64_t h,
                       std::int64_t d) {
  if (!g) return {nullptr, 0};
  if constexpr (std::is_same_v<T, float>) return attn::head_rows<float>(g, b, h, d);
  return {scratch.ptr<float>() + which * scratch.strides()[0] + b * scratch.strides()[1] + h * scratch.strides()[2], d};
}

template <class Isa> void clear(Isa, attn::Rows<float> r, std::int64_t rows, std::int64_t d) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; ++j) r[i][j] = 0;
}

template <class Isa, class T>
void write_sums(Isa, attn::Rows<T> to, attn::Rows<float> from, std::int64_t rows, std::int64_t d, bool add) {
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += V::N) {
      const int n = attn::lanes_at<Isa>(d, j);
      V y = V::load(from[i] + j, n);
      if (add) y = y + V::load(to[i] + j, n);
      y.store(to[i] + j, n);
    }
}

}  // namespace

template <class Isa>
void attention_backward(Isa isa, Pool& pool, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse,
                        View dout, Tensor scratch, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, share = heads / kv_heads,
                     queries = q[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads, keys = k[1];
  const float scale = a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d));
  const auto run = [&]<class T, class W>(W) {
    constexpr bool in_place = std::is_same_v<T, float>;
    parallel_tasks(pool, q[0] * kv_heads, [&](std::int64_t task) {
      const auto b = task / kv_heads, g = task % kv_heads;
      const Shared s{sums<T>(dk, scratch, 0, b, g, d),
                     sums<T>(dv, scratch, 1, b, g, d),
                     queries,
                     keys,
                     d,
                     keys - queries + (a.ahead > 0 ? a.ahead : 0),
                     a.causal,
                     scale,
                     a.window,
                     a.cap / scale,
                     a.ahead >= 0};
      if (dk && !(in_place && dk.accumulate())) clear(isa, s.dk, keys, d);
      if (dv && !(in_place && dv.accumulate())) clear(isa, s.dv, keys, d);
      const attn::Registers<W> registers;
      Work<W> work;
      for (auto h = g * share; h < (g + 1) * share; ++h) {
        Head<T> head{attn::head_rows<T>(q, b, h, d),
                     attn::head_rows<T>(out, b, h, d),
                     attn::head_rows<T>(dout, b, h, d),
                     {},
                     lse.ptr<float>() + b * lse.strides()[0] + h * lse.strides()[1],
                     bool(dq),
                     dq.accumulate()};
        if (dq) head.dq = attn::head_rows<T>(static_cast<const Tensor&>(dq), b, h, d);
        for (std::int64_t t0 = 0; t0 < queries; t0 += kTogether * kQueries) {
          const auto t1 = queries - t0 < kTogether * kQueries ? queries : t0 + kTogether * kQueries;
          query_blocks(isa, work, head, attn::head_rows<T>(k, b, g, d), attn::head_rows<T>(v, b, g, d), t0, t1, s);
        }
      }
      if constexpr (!in_place) {
        if (dk)
          write_sums(isa, attn::head_rows<T>(static_cast<const Tensor&>(dk), b, g, d), s.dk, keys, d, dk.accumulate());
        if (dv)
          write_sums(isa, attn::head_rows<T>(static_cast<const Tensor&>(dv), b, g, d), s.dv, keys, d, dv.accumulate());
      }
    });
  };
  visit_dtype(q.dtype(),
              [&]<class T>() { attn::with_words<Isa, T>(isa, [&]<class W>(W w) { run.template operator()<T>(w); }); });
}

template void attention_backward(simd::Isa, Pool&, Grad, Grad, Grad, View, View, View, View, View, View, Tensor,
                                 const Attention::Args&);

}  // namespace hpcdl::cpu
