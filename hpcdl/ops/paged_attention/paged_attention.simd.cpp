#include "hpcdl/ops/paged_attention/paged_attention.h"

#include "hpcdl/ops/attention/one_query.h"
#include "hpcdl/ops/paged_attention/paged_rows.h"

// Sequences with one query are bound by reading their keys (one_query.h), the others by products (query_blocks.h). Which
// other sequences there are changes no bit of a result.

namespace hpcdl::cpu {
namespace {

struct Batch {
  const Tensor& out;
  const View &q, &k, &v, &starts, &lengths, &pages;
  std::int64_t heads, kv_heads, d;
  float scale;
  std::int64_t window;
  float cap;

  /// The first key that a single query of sequence r sees.
  std::int64_t first(std::int64_t r) const { return window > 0 && keys(r) > window ? keys(r) - window : 0; }
  std::int64_t start(std::int64_t r) const { return starts.ptr<std::int32_t>()[r]; }
  std::int64_t queries(std::int64_t r) const { return start(r + 1) - start(r); }
  std::int64_t keys(std::int64_t r) const { return lengths.ptr<std::int32_t>()[r]; }
  template <class K> attn::PagedRows<K> rows(const View& pool, std::int64_t r, std::int64_t g) const {
    return {pool.ptr<K>() + g * pool.strides()[1], pool.strides()[0], d, pages.ptr<std::int32_t>() + r * pages[1]};
  }
};

/// Sequences with one query. A static split: the same thread processes the same heads in every step.
template <class Isa, class T, class K> void decode(Isa isa, Pool& pool, const Batch& x) {
  const std::int64_t sequences = x.lengths[0], tasks = sequences * x.kv_heads;
  std::int64_t keys = 1;
  for (std::int64_t r = 0; r < sequences; ++r) keys = keys < x.keys(r) - x.first(r) ? x.keys(r) - x.first(r) : keys;
  parallel_for(pool, tasks, 1 + 16384 / (keys * x.d), [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const auto r = begin / x.kv_heads, last = (r + 1) * x.kv_heads < end ? (r + 1) * x.kv_heads : end,
                 row = x.start(r);
      if (x.queries(r) == 1)
        run_task<Isa, attn::PagedRows<K>>(
            isa, begin - r * x.kv_heads, last - r * x.kv_heads,
            {x.heads, x.kv_heads, x.d, x.keys(r), x.scale, x.first(r), x.cap}, nullptr, 0,
            [&](std::int64_t h) { return attn::head_rows<T>(x.q, 0, h, x.d)[row]; },
            [&](std::int64_t h) { return attn::head_rows<T>(x.out, 0, h, x.d)[row]; },
            [&](std::int64_t g) { return x.rows<K>(x.k, r, g); }, [&](std::int64_t g) { return x.rows<K>(x.v, r, g); });
      begin = last;
    }
  });
}

template <class Isa, class T, class K>
void prefill(Isa isa, Pool& pool, const Batch& x, std::int64_t r, bool invariant) {
  using Stored = std::conditional_t<std::is_same_v<T, K>, T, float>;
  const std::int64_t queries = x.queries(r), keys = x.keys(r), row = x.start(r);
  const Extent e{queries, keys, x.d, keys - queries, true, x.scale, invariant, x.window, x.cap};
  attn::with_words<Isa, Stored>(isa, [&]<class W>(W) {
    for_query_blocks<W>(pool, 1, x.heads, queries, x.d,
                        [&](Work<W>& work, std::int64_t, std::int64_t h, std::int64_t t0, std::int64_t t1) {
                          const auto g = h * x.kv_heads / x.heads;
                          query_blocks(isa, work, attn::head_rows<T>(x.out, 0, h, x.d).from(row), nullptr,
                                       attn::head_rows<T>(x.q, 0, h, x.d).from(row), x.rows<K>(x.k, r, g),
                                       x.rows<K>(x.v, r, g), t0, t1, e);
                        });
  });
}

}  // namespace

template <class Isa>
void paged_attention(Isa isa, Pool& pool, Tensor out, View q, View k_pool, View v_pool, View starts, View lengths,
                     View pages, const PagedAttention::Args& a, const Numerics& numerics) {
  const std::int64_t d = q[2] / a.heads, sequences = lengths[0];
  const Batch x{out,
                q,
                k_pool,
                v_pool,
                starts,
                lengths,
                pages,
                a.heads,
                k_pool[1],
                d,
                a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d)),
                a.window,
                a.cap};
  const auto is_single = [&](std::int64_t r) { return x.queries(r) == 1 && !numerics.row_invariant; };
  bool single = false;
  for (std::int64_t r = 0; r < sequences; ++r) single = single || is_single(r);
  visit_dtype(q.dtype(), [&]<class T>() {
    visit_pool_dtype(k_pool.dtype(), [&]<class K>() {
      if (single) decode<Isa, T, K>(isa, pool, x);
      for (std::int64_t r = 0; r < sequences; ++r)
        if (x.queries(r) > 0 && !is_single(r)) prefill<Isa, T, K>(isa, pool, x, r, numerics.row_invariant);
    });
  });
}

template void paged_attention(simd::Isa, Pool&, Tensor, View, View, View, View, View, View, const PagedAttention::Args&,
                              const Numerics&);

}  // namespace hpcdl::cpu
