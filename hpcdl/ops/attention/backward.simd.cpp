// For one key/value head: every block of queries of every query head that shares it, against every block of keys.
// Probabilities are computed again, transposed as in the forward pass; dq is summed per block of queries, dk and dv over all.

#include "hpcdl/core/pool.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/tile.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kQueries = 64, kKeys = 64, kMaxDim = Attention::kMaxHeadDim;

constexpr float kLog2e = 1.4426950408889634f;

struct Block {
  alignas(64) float q[kMaxDim * kQueries];     // q^T, times scale and log2 e: (D, queries)
  alignas(64) float dout[kMaxDim * kQueries];  // dout^T: (D, queries)
  alignas(64) float dq[kMaxDim * kQueries];    // (D, queries)
  alignas(64) float p[kKeys * kQueries];       // (keys, queries)
  alignas(64) float ds[kKeys * kQueries];      // (keys, queries)
  // Copies as floats, where the memory itself will not do.
  alignas(64) float q_rows[kQueries * kMaxDim], dout_rows[kQueries * kMaxDim], k[kKeys * kMaxDim], v[kKeys * kMaxDim];
  alignas(64) float sum[kKeys * kMaxDim];      // part of dk or dv
  alignas(64) float lse[kQueries] /* times log2 e */, delta[kQueries], ones[kQueries];
};

template <class T> struct Head {
  attn::Rows<const T> q, out, dout;
  attn::Rows<T> dq;
  const float* lse;
  bool want_dq, add_dq;
};

struct Shared {
  attn::Rows<float> dk, dv;  // base null: not wanted
  std::int64_t queries, keys, d, offset;
  bool causal;
  float scale;
};

/// p: scores -> probabilities; ds: do v^T -> p (ds - delta).
template <class Isa>
[[gnu::flatten]] void probabilities(Isa, Block& w, std::int64_t keys, std::int64_t first, bool masked, std::int64_t lanes) {
  using V = simd::Vec<Isa>;
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  for (std::int64_t l = 0; l < lanes; l += V::N) {
    const V position = V::load(iota) + V(static_cast<float>(l - first));
    const V lse = V::load(w.lse + l), delta = V::load(w.delta + l);
    const std::int64_t seen = masked ? attn::seen_by_span(l, lanes, keys, first) : keys;
    for (std::int64_t j = seen; j < keys; ++j) {
      V(0.0f).store(w.p + j * kQueries + l);
      V(0.0f).store(w.ds + j * kQueries + l);
    }
    for (std::int64_t j = 0; j < seen; ++j) {
      V p = exp2(V::load(w.p + j * kQueries + l) - lse);
      if (masked) p = select(position < V(static_cast<float>(j)), V(0.0f), p);
      p.store(w.p + j * kQueries + l);
      (p * (V::load(w.ds + j * kQueries + l) - delta)).store(w.ds + j * kQueries + l);
    }
  }
}

/// to[j][0, d) += part of rows (keys, d_up).
template <class Isa> void add_rows(Isa, attn::Rows<float> to, const float* from, std::int64_t keys, std::int64_t d, float factor) {
  using V = simd::Vec<Isa>;
  const std::int64_t up = (d + V::N - 1) / V::N * V::N;
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t i = 0; i < d; i += V::N) {
      const int n = static_cast<int>(d - i < V::N ? d - i : V::N);
      fma(V::load(from + j * up + i), V(factor), V::load(to[j] + i, n)).store(to[j] + i, n);
    }
}

template <class Isa, class T> void load_block(Isa isa, Block& w, const Head<T>& h, std::int64_t t0, std::int64_t rows, std::int64_t lanes, const Shared& s) {
  using V = simd::Vec<Isa>;
  attn::transpose_in(isa, w.q, kQueries, attn::Rows<const T>{h.q[t0], h.q.stride}, rows, lanes, s.d, s.scale * kLog2e);
  attn::transpose_in(isa, w.dout, kQueries, attn::Rows<const T>{h.dout[t0], h.dout.stride}, rows, lanes, s.d, 1);
  for (std::int64_t r = 0; r < lanes; ++r) {
    V dot(0.0f);
    if (r < rows)
      for (std::int64_t i = 0; i < s.d; i += V::N) {
        const int n = static_cast<int>(s.d - i < V::N ? s.d - i : V::N);
        dot = fma(V::load(h.out[t0 + r] + i, n), V::load(h.dout[t0 + r] + i, n), dot);
      }
    w.delta[r] = reduce_add(dot);
    w.lse[r] = r < rows ? h.lse[t0 + r] * kLog2e : __builtin_inff();  // lanes behind the last query: p = 0
    w.ones[r] = s.scale;
  }
}

template <class Isa, class T>
void query_block(Isa isa, Block& w, const Head<T>& h, attn::Rows<const T> k, attn::Rows<const T> v, std::int64_t t0, const Shared& s) {
  using V = simd::Vec<Isa>;
  const std::int64_t rows = s.queries - t0 < kQueries ? s.queries - t0 : kQueries, d = s.d, up = (d + V::N - 1) / V::N * V::N;
  const std::int64_t lanes = (rows + V::N - 1) / V::N * V::N, at = s.offset + t0;
  load_block(isa, w, h, t0, rows, lanes, s);
  const auto qf = attn::float_rows(isa, w.q_rows, attn::Rows<const T>{h.q[t0], h.q.stride}, rows, d, attn::Read::vectors);
  const auto gf = attn::float_rows(isa, w.dout_rows, attn::Rows<const T>{h.dout[t0], h.dout.stride}, rows, d, attn::Read::vectors);
  const std::int64_t end = s.causal && at + rows < s.keys ? at + rows : s.keys;
  for (std::int64_t j0 = 0; j0 < end; j0 += kKeys) {
    const std::int64_t keys = end - j0 < kKeys ? end - j0 : kKeys;
    const bool masked = s.causal && j0 + keys > at + 1;
    const auto kf = attn::float_rows(isa, w.k, attn::Rows<const T>{k[j0], k.stride}, keys, d, attn::Read::across);
    const auto vf = attn::float_rows(isa, w.v, attn::Rows<const T>{v[j0], v.stride}, keys, d, attn::Read::along);
    attn::multiply_scores(isa, w.p, kQueries, {kf.base, kf.stride, 1}, w.q, kQueries, keys, lanes, d, masked, j0 - at);
    attn::multiply_scores(isa, w.ds, kQueries, {vf.base, vf.stride, 1}, w.dout, kQueries, keys, lanes, d, masked, j0 - at);
    probabilities(isa, w, keys, j0 - at, masked, lanes);
    if (h.want_dq)
      attn::multiply_weights(isa, w.dq, kQueries, {kf.base, 1, kf.stride}, w.ds, kQueries, d, lanes, keys, j0 > 0, masked, j0 - at);
    if (s.dv.base) {
      attn::multiply(isa, w.sum, up, {w.p, kQueries, 1}, gf.base, gf.stride, keys, d, rows, false);
      add_rows(isa, {s.dv[j0], s.dv.stride}, w.sum, keys, d, 1);
    }
    if (s.dk.base) {
      attn::multiply(isa, w.sum, up, {w.ds, kQueries, 1}, qf.base, qf.stride, keys, d, rows, false);
      add_rows(isa, {s.dk[j0], s.dk.stride}, w.sum, keys, d, s.scale);
    }
  }
  if (h.want_dq) attn::transpose_out(isa, attn::Rows<T>{h.dq[t0], h.dq.stride}, w.dq, kQueries, rows, d, w.ones, h.add_dq);
}

/// Where the f32 sums of one head of a gradient are made: in place, or in the scratch.
template <class T> attn::Rows<float> sums(const Grad& g, const Tensor& scratch, int which, std::int64_t b, std::int64_t h, std::int64_t d) {
  if (!g) return {nullptr, 0};
  if constexpr (std::is_same_v<T, float>) return attn::head_rows<float>(g, b, h, d);
  return {scratch.ptr<float>() + which * scratch.strides()[0] + b * scratch.strides()[1] + h * scratch.strides()[2], d};
}

template <class Isa> void clear(Isa, attn::Rows<float> r, std::int64_t rows, std::int64_t d) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; ++j) r[i][j] = 0;
}

template <class Isa, class T> void write_sums(Isa, attn::Rows<T> to, attn::Rows<float> from, std::int64_t rows, std::int64_t d, bool add) {
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += V::N) {
      const int n = static_cast<int>(d - j < V::N ? d - j : V::N);
      V y = V::load(from[i] + j, n);
      if (add) y = y + V::load(to[i] + j, n);
      y.store(to[i] + j, n);
    }
}

}  // namespace

template <class Isa>
void attention_backward(Isa isa, Pool& pool, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                        Tensor scratch, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, share = heads / kv_heads, queries = q[1];
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads, keys = k[1];
  const float scale = a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d));
  visit_dtype(q.dtype(), [&]<class T>() {
    constexpr bool in_place = std::is_same_v<T, float>;
    parallel_tasks(pool, q[0] * kv_heads, [&](std::int64_t task) {
      const auto b = task / kv_heads, g = task % kv_heads;
      const Shared s{sums<T>(dk, scratch, 0, b, g, d), sums<T>(dv, scratch, 1, b, g, d), queries, keys, d, keys - queries, a.causal, scale};
      if (dk && !(in_place && dk.accumulate())) clear(isa, s.dk, keys, d);
      if (dv && !(in_place && dv.accumulate())) clear(isa, s.dv, keys, d);
      Block w;
      for (auto h = g * share; h < (g + 1) * share; ++h) {
        Head<T> head{attn::head_rows<T>(q, b, h, d), attn::head_rows<T>(out, b, h, d), attn::head_rows<T>(dout, b, h, d), {},
                     lse.ptr<float>() + (b * heads + h) * queries, bool(dq), dq.accumulate()};
        if (dq) head.dq = attn::head_rows<T>(static_cast<const Tensor&>(dq), b, h, d);
        for (std::int64_t t0 = 0; t0 < queries; t0 += kQueries)
          query_block(isa, w, head, attn::head_rows<T>(k, b, g, d), attn::head_rows<T>(v, b, g, d), t0, s);
      }
      if constexpr (!in_place) {
        if (dk) write_sums(isa, attn::head_rows<T>(static_cast<const Tensor&>(dk), b, g, d), s.dk, keys, d, dk.accumulate());
        if (dv) write_sums(isa, attn::head_rows<T>(static_cast<const Tensor&>(dv), b, g, d), s.dv, keys, d, dv.accumulate());
      }
    });
  });
}

template void attention_backward(simd::Isa, Pool&, Grad, Grad, Grad, View, View, View, View, View, View, Tensor, const Attention::Args&);

}  // namespace hpcdl::cpu
