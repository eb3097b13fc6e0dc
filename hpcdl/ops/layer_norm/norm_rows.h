#pragma once
// Row kernels shared by layer_norm and rms_norm (included only by their .simd.cpp).
//
//   forward   xhat = (h - mean) * rstd,  y = xhat * gamma + beta;  h = x, or x + residual
//   backward  with g = dy * gamma:  dh = rstd * (g - mean(g) - xhat * mean(g * xhat)),
//             dgamma = sum(dy * xhat),  dbeta = sum(dy)
//
// The root-mean-square norm is the same with mean = 0 and without the mean(g) term. Statistics take two passes over a
// cached row: sum of squares minus square of the sum would cancel.

#include "hpcdl/ops/layer_norm/norm.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/prefetch.h"

namespace hpcdl::cpu {

/// Prefetches a line of a later row. Long rows are loaded into L2 from four pages in turn: forward and backward of 8192
/// x 4096 floats on an Intel Xeon then take 0.88 of the time, nearly that of a copy of the same bytes with non-temporal
/// stores.
template <class T> struct NormPrefetch {
  bool is_long;
  explicit NormPrefetch(std::int64_t n) : is_long(n * static_cast<std::int64_t>(sizeof(T)) >= 16384) {}
  template <int kLocality> [[gnu::always_inline]] void line(const T* p) const {
    if (is_long) simd::prefetch_pages_in_turn(p);
    else __builtin_prefetch(p, 0, kLocality);
  }
};

template <class Isa, bool Center, class T, class P> void norm_forward_row(const NormForward& o, std::int64_t r) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = o.x.cols();
  const T* x = o.x.ptr<T>() + r * o.x.row_stride();
  const T* res = o.residual ? o.residual.ptr<T>() + r * o.residual.row_stride() : nullptr;
  const P *gamma = o.gamma.ptr<P>(), *beta = o.beta.ptr<P>();
  T* y = o.y.ptr<T>() + r * o.y.row_stride();
  const bool past_cache = goes_past_cache(o.y);
  const auto ahead = rows_ahead(n * static_cast<std::int64_t>(sizeof(T)));
  const NormPrefetch<T> fetch(n);
  const auto put = [&](T* p, V v, auto k) {
    if (past_cache) stream(p, v, k);
    else store(p, v, k);
  };
  const auto body = [&](auto value) {
    float mean = 0;
    if constexpr (Center)
      mean = sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) { return a + value(i, k); }) / static_cast<float>(n);
    const V m(mean);
    const float squares = sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) {
      fetch.template line<3>(x + ahead * o.x.row_stride() + i);  // memory does not wait for arithmetic
      if (res) fetch.template line<3>(res + ahead * o.residual.row_stride() + i);
      const V d = first(value(i, k) - m, k, 0);
      return fma(d, d, a);
    });
    const float rstd = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + o.eps);
    const V s(rstd), offset(o.gamma_offset);
    if (beta) {
      loop<Isa>(n, [&](std::int64_t i, auto k) {
        put(y + i, fma((value(i, k) - m) * s, load<V>(gamma + i, k), load<V>(beta + i, k)), k);
      });
    } else {
      loop<Isa>(
          n, [&](std::int64_t i, auto k) { put(y + i, (value(i, k) - m) * s * (load<V>(gamma + i, k) + offset), k); });
    }
    if (o.mean) o.mean.ptr<float>()[r] = mean;
    if (o.rstd) o.rstd.ptr<float>()[r] = rstd;
  };
  if (!res) return body([&](std::int64_t i, auto k) { return load<V>(x + i, k); });
  T* h = o.h.ptr<T>() + r * o.h.row_stride();
  loop<Isa>(n, [&](std::int64_t i, auto k) { put(h + i, load<V>(x + i, k) + load<V>(res + i, k), k); });
  // h is stored rounded to T, but statistics use the unrounded sum, so those of bf16 lose nothing.
  body([&](std::int64_t i, auto k) { return load<V>(x + i, k) + load<V>(res + i, k); });
}

template <class Isa, bool Center> void norm_forward(Isa, Pool& pool, const NormForward& o) {
  visit_dtype(o.x.dtype(), [&]<class T>() {
    visit_dtype(o.gamma.dtype(), [&]<class P>() {
      for_rows(pool, o.x.rows(), o.x.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) norm_forward_row<Isa, Center, T, P>(o, r);
        simd::stream_fence<Isa>();
      });
    });
  });
}

// The gradients' next rows are prefetched into L2. Two rows of two operands do not fit L1 if rows are long, and its few
// outstanding requests would limit bandwidth: on an Intel Xeon (48 KiB of L1) 8192 x 4096 took 1.75 times as long.

/// One row's operands and coefficients: dh = a * dy * gamma + b * xhat + c (+ dh_in).
template <class T> struct NormRow {
  const T *h, *dy, *add;
  T *dx, *dres;
  float mean, rstd, b, c;
};

template <class Isa, bool Center, class T, class P>
NormRow<T> norm_backward_row(const NormBackward& o, std::int64_t r, std::int64_t ahead) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto at = [&](const auto& t) {
    return t ? static_cast<T*>(const_cast<void*>(t.View::data())) + r * t.row_stride() : nullptr;
  };
  NormRow<T> row{at(o.h), at(o.dy), at(o.dh_in), at(o.dx), at(o.dresidual), 0, o.rstd.ptr<float>()[r], 0, 0};
  if constexpr (Center) row.mean = o.mean.ptr<float>()[r];
  const auto n = o.h.cols();
  const P* gamma = o.gamma.ptr<P>();
  const V m(row.mean), offset(o.gamma_offset);
  V dot0(0.0f), dot1(0.0f), sum0(0.0f), sum1(0.0f);
  const auto* next = row.h + ahead * o.h.row_stride();
  const NormPrefetch<T> fetch(n);
  const auto step = [&](V& dot, V& sum, std::int64_t i, auto k) {
    fetch.template line<2>(next + i);
    const V g = load<V>(row.dy + i, k) * (load<V>(gamma + i, k) + offset);
    if constexpr (Center) sum = sum + g;
    dot = fma(g, load<V>(row.h + i, k) - m, dot);
  };
  std::int64_t i = 0;
  for (; i + 2 * V::N <= n; i += 2 * V::N) {
    step(dot0, sum0, i, Whole{});
    step(dot1, sum1, i + V::N, Whole{});
  }
  loop<Isa>(n - i, [&](std::int64_t j, auto k) { step(dot0, sum0, i + j, k); });
  const float inv = row.rstd / static_cast<float>(n);
  row.b = -inv * row.rstd * reduce_add(dot0 + dot1);  // times xhat
  row.c = -inv * reduce_add(sum0 + sum1);
  return row;
}

/// Gradients of R rows together, so that gamma and the partial parameter gradients are read and written once for all.
/// kStreamed: the rows' results go only to dx, which is overwritten with non-temporal stores.
template <class Isa, int R, bool kStreamed, class T, class P>
void norm_backward_rows(const NormBackward& o, const NormRow<T>* rows, std::int64_t ahead, bool past_cache,
                        float* dgamma, float* dbeta, std::int64_t n) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const P* gamma = o.gamma.ptr<P>();
  const bool add_x = o.dx.accumulate(), add_res = o.dresidual.accumulate();
  const auto put = [&](T* p, V v, bool add, auto k) {
    if (add) store(p, v + load<V>(p, k), k);
    else if (past_cache) stream(p, v, k);
    else store(p, v, k);
  };
  const auto next_dy = ahead * o.dy.row_stride();
  const NormPrefetch<T> fetch(n);
  // In registers, because the compiler must assume that the stores below change the rows' coefficients.
  const V offset(o.gamma_offset);
  V mean[R], rstd[R], b[R], c[R];
  const T *dys[R], *hs[R];
  T* dxs[R];
#pragma GCC unroll 4
  for (int q = 0; q < R; ++q) {
    mean[q] = V(rows[q].mean), rstd[q] = V(rows[q].rstd), b[q] = V(rows[q].b), c[q] = V(rows[q].c);
    dys[q] = rows[q].dy, hs[q] = rows[q].h, dxs[q] = rows[q].dx;
  }
  loop<Isa>(n, [&](std::int64_t i, auto k) {
    const V w = load<V>(gamma + i, k) + offset;
    V dg = load<V>(dgamma + i, k), db = load<V>(dbeta + i, k);
#pragma GCC unroll 4
    for (int q = 0; q < R; ++q) {
      fetch.template line<2>(dys[q] + next_dy + i);  // its h was prefetched with the sums
      const V dy = load<V>(dys[q] + i, k), xhat = (load<V>(hs[q] + i, k) - mean[q]) * rstd[q];
      dg = fma(dy, xhat, dg);
      db = db + dy;
      V d = fma(dy * w, rstd[q], fma(xhat, b[q], c[q]));
      if constexpr (kStreamed) {
        stream(dxs[q] + i, d, k);
      } else {
        if (rows[q].add) d = d + load<V>(rows[q].add + i, k);
        if (dxs[q]) put(dxs[q] + i, d, add_x, k);
        if (rows[q].dres) put(rows[q].dres + i, d, add_res, k);
      }
    }
    store(dgamma + i, dg, k);
    store(dbeta + i, db, k);
  });
}

template <class Isa, bool Center, bool kStreamed, class T, class P>
void norm_backward_chunk(const NormBackward& o, std::int64_t chunk, bool past_cache) {
  const auto n = o.h.cols(), per = norm_chunk_rows(o.h.rows());
  const auto begin = chunk * per, end = begin + per < o.h.rows() ? begin + per : o.h.rows();
  float *dgamma = o.partial.ptr<float>() + chunk * 2 * n, *dbeta = dgamma + n;
  for (std::int64_t i = 0; i < 2 * n; ++i) dgamma[i] = 0;
  // From memory row by row, which spreads the requests evenly over the arithmetic; from a cache several rows per read
  // of gamma.
  constexpr int R = kStreamed ? 1 : 4;
  const auto ahead = kStreamed ? rows_ahead(n * static_cast<std::int64_t>(sizeof(T))) : R;
  NormRow<T> rows[R];
  auto r = begin;
  for (; r + R <= end; r += R) {
    for (int q = 0; q < R; ++q) rows[q] = norm_backward_row<Isa, Center, T, P>(o, r + q, ahead);
    norm_backward_rows<Isa, R, kStreamed, T, P>(o, rows, ahead, past_cache, dgamma, dbeta, n);
  }
  for (; r < end; ++r) {
    rows[0] = norm_backward_row<Isa, Center, T, P>(o, r, 1);
    norm_backward_rows<Isa, 1, kStreamed, T, P>(o, rows, 1, past_cache, dgamma, dbeta, n);
  }
  simd::stream_fence<Isa>();
}

/// out = (or +=) the sum of the chunks' partial gradients, in the order of the chunks.
template <class Isa, class P>
void norm_reduce(const Grad& out, const float* partial, std::int64_t chunks, std::int64_t n, std::int64_t begin,
                 std::int64_t end) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  P* p = out.ptr<P>();
  loop<Isa>(end - begin, [&](std::int64_t j, auto k) {
    const auto i = begin + j;
    V sum = out.accumulate() ? load<V>(p + i, k) : V(0.0f);
    for (std::int64_t c = 0; c < chunks; ++c) sum = sum + load<V>(partial + c * 2 * n + i, k);
    store(p + i, sum, k);
  });
}

/// The gradient that reaches h from elsewhere passes through unchanged if y has no gradient.
template <class Isa, class T> void norm_pass_through(Pool& pool, const NormBackward& o) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = o.h.cols();
  for_rows(pool, o.h.rows(), n, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const T* from = o.dh_in ? o.dh_in.ptr<T>() + r * o.dh_in.row_stride() : nullptr;
      for (const Grad* g : {&o.dx, &o.dresidual}) {
        if (!*g) continue;
        T* to = g->ptr<T>() + r * g->row_stride();
        loop<Isa>(n, [&](std::int64_t i, auto k) {
          V v = from ? load<V>(from + i, k) : V(0.0f);
          if (g->accumulate()) v = v + load<V>(to + i, k);
          store(to + i, v, k);
        });
      }
    }
  });
}

template <class Isa, bool Center> void norm_backward(Isa, Pool& pool, const NormBackward& o) {
  const auto n = o.h.cols();
  const auto chunks = o.dy ? norm_chunks(o.h.rows()) : 0;
  const Grad& out = o.dx ? o.dx : o.dresidual;
  const bool past_cache = out && goes_past_cache(out),
             streamed = past_cache && o.dx && !o.dx.accumulate() && !o.dresidual && !o.dh_in;
  visit_dtype(o.h.dtype(), [&]<class T>() {
    if (!o.dy) return norm_pass_through<Isa, T>(pool, o);
    visit_dtype(o.gamma.dtype(), [&]<class P>() {
      parallel_for(pool, chunks, kGrainElements / (n * norm_chunk_rows(o.h.rows()) + 1) + 1,
                   [&](std::int64_t b, std::int64_t e) {
                     for (auto c = b; c < e; ++c) {
                       if (streamed) norm_backward_chunk<Isa, Center, true, T, P>(o, c, past_cache);
                       else norm_backward_chunk<Isa, Center, false, T, P>(o, c, past_cache);
                     }
                   });
    });
  });
  visit_dtype(o.gamma.dtype(), [&]<class P>() {
    const std::int64_t blocks = (n + 63) / 64;
    parallel_for(pool, blocks, kGrainElements / (64 * (chunks + 1)) + 1, [&](std::int64_t b, std::int64_t e) {
      const auto end = e * 64 < n ? e * 64 : n;
      if (o.dgamma) norm_reduce<Isa, P>(o.dgamma, o.partial.ptr<float>(), chunks, n, b * 64, end);
      if (o.dbeta) norm_reduce<Isa, P>(o.dbeta, o.partial.ptr<float>() + n, chunks, n, b * 64, end);
    });
  });
}

}  // namespace hpcdl::cpu
