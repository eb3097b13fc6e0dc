#pragma once
// Attention of blocks of queries of one head over blocks of keys: for attention.simd.cpp and paged_attention.simd.cpp.

#include <atomic>

#include "hpcdl/ops/attention/pack.h"
#include "hpcdl/pool.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

using attn::kQueries;

/// Keys that a block of queries processes at once: whole rows of register tiles, and scores (24 KiB) that leave room
/// for q in L1.
constexpr std::int64_t kKeys = 96;

/// Blocks of queries that use a block of keys while it is cached: as many as fit half of an L2, since keys and values
/// are rearranged once for all of them.
constexpr std::int64_t kTogether = 16, kTogetherBytes = std::int64_t{544} << 10;

/// A block of queries of one head. W: word type of the scores.
template <class W> struct Queries {
  W* q;              // q^T: (words of D, queries)
  float* out;        // (D, queries), not yet divided by sum
  float *top, *sum;  // (queries)
};

/// A thread's scratch, packed densely because addresses a power of two apart share cache sets. Pairs: probabilities are
/// rounded to bf16 before they multiply values, as on a GPU and in backward; their sum is taken before rounding.
template <class W> struct Work {
  Queries<W> queries[kTogether];
  float* p;  // scores (keys, queries), then probabilities (words of keys, queries)
  W* k;      // row words
  W* v;      // column words

  static std::int64_t block_bytes(std::int64_t d) {
    return 4 * kQueries * (attn::words_of<W>(d) + attn::rows_of<W>(d) + 2);
  }
  static std::int64_t bytes(std::int64_t d, std::int64_t blocks) {
    return block_bytes(d) * blocks + 4 * kKeys * (kQueries + 2 * whole(d));
  }
  static std::int64_t whole(std::int64_t d) { return (d + 31) / 32 * 32; }

  Work(std::byte* memory, std::int64_t d, std::int64_t blocks) {
    const auto take = [&]<class T>(T*& to, std::int64_t n) {
      to = reinterpret_cast<T*>(memory);
      memory += 4 * n;
    };
    for (std::int64_t i = 0; i < blocks; ++i) {
      take(queries[i].q, attn::words_of<W>(d) * kQueries);
      take(queries[i].out, attn::rows_of<W>(d) * kQueries);
      take(queries[i].top, kQueries);
      take(queries[i].sum, kQueries);
    }
    take(p, kKeys * kQueries);
    take(k, kKeys * whole(d));
    take(v, kKeys * whole(d));
  }
};

constexpr float kLog2e = 1.4426950408889634f;

/// A maximum may grow by this power of two before sums relative to the old one are rescaled; f32 has room for it. Pairs
/// are rescaled at once, so that the largest probability, whose rounding error weighs most, is 1.
template <class W> constexpr float kHeadroom = attn::kGroup<W> == 1 ? 8 : 0;

/// The exponents rate * score - rate * top are as exact as rate * top; beyond this limit they are computed from score -
/// top.
constexpr float kFar = 256;

/// For a vector of queries, some with a far top: makes their scores relative to it. Returns the mask of near queries.
template <class Isa>
[[gnu::noinline, gnu::cold]] simd::Mask<Isa> subtract_far(float* scores, std::int64_t keys, simd::Vec<Isa> top,
                                                          simd::Vec<Isa> shift) {
  using V = simd::Vec<Isa>;
  const auto near = abs(shift) <= V(kFar);
  for (std::int64_t j = 0; j < keys; ++j) {
    const V x = V::load(scores + j * kQueries);
    select(near, x, x - top).store(scores + j * kQueries);
  }
  return near;
}

/// NV vectors of queries: scores of `keys` keys -> words of 2^(rate (score - top)), with the running maximum and sum;
/// rescales `out` where the maximum rose far. Lane l + i of a masked block sees keys 0 .. l + i - first, or the last
/// of them.
template <class Isa, int NV, class W>
[[gnu::noinline]] void softmax_lanes(Isa, Queries<W>& w, float* scores, std::int64_t l, std::int64_t keys,
                                     const attn::Sight& s, float rate, bool fresh, std::int64_t d, bool invariant) {
  using V = simd::Vec<Isa>;
  constexpr float kInf = __builtin_inff();
  float iota[V::N];
  for (int i = 0; i < V::N; ++i) iota[i] = static_cast<float>(i);
  V position[NV], before[NV], top[NV], sum[NV], shift[NV], fall[NV];
  for (int v = 0; v < NV; ++v) {
    position[v] = V::load(iota) + V(static_cast<float>(l + v * V::N - s.first));
    top[v] = before[v] = fresh ? V(-kInf) : V::load(w.top + l + v * V::N);
    sum[v] = V(0.0f);
  }
  float* const p = scores + l;
  const auto sweeps = [&](auto mask) {
    for (std::int64_t j = 0; j < keys; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        V x = V::load(p + j * kQueries + v * V::N);
        if constexpr (mask.kAny) x = mask.hide(position[v], static_cast<float>(j), V(-kInf), x);
        top[v] = max(x, top[v]);
      }
    for (int v = 0; v < NV; ++v) {
      top[v] = select((top[v] - before[v]) * V(rate) <= V(kHeadroom<W>), before[v], top[v]);
      shift[v] = V(0.0f) - top[v] * V(rate);
      fall[v] = fma(before[v], V(rate), shift[v]);
      if (reduce_max(abs(shift[v])) <= kFar) [[likely]]
        continue;
      const auto near = subtract_far<Isa>(p + v * V::N, keys, top[v], shift[v]);
      fall[v] = select(near, fall[v], (before[v] - top[v]) * V(rate));
      shift[v] = select(near, shift[v], V(0.0f));
    }
    // Otherwise what rounding took from rate * top, which a query that sees none of these keys would count, too.
    for (int v = 0; invariant && v < NV; ++v) fall[v] = select(top[v] == before[v], V(0.0f), fall[v]);
    // Lanes whose window has not begun have neither a maximum nor a sum.
    for (int v = 0; mask.kWindow && v < NV; ++v) fall[v] = select(before[v] == V(-kInf), V(0.0f), fall[v]);
    const auto weight = [&](std::int64_t j, int v) {
      V e = exp2(fma(V::load(p + j * kQueries + v * V::N), V(rate), shift[v]));
      if constexpr (mask.kAny) e = mask.hide(position[v], static_cast<float>(j), V(0.0f), e);
      sum[v] = sum[v] + e;
      return e;
    };
    for (std::int64_t j = 0; j < keys; j += attn::kGroup<W>)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        const V first = weight(j, v);
        // The words of keys j and j + 1 overwrite row j / 2, whose scores in these lanes have been read.
        attn::store_word<W>(p + j / attn::kGroup<W> * kQueries + v * V::N, first,
                            [&] { return j + 1 < keys ? weight(j + 1, v) : V(0.0f); });
      }
  };
  attn::with_mask(Isa{}, s, sweeps);
  for (std::int64_t j = (keys + attn::kGroup<W> - 1) / attn::kGroup<W>; j < attn::words_of<W>(keys); ++j)
    for (int v = 0; v < NV; ++v) V(0.0f).store(p + j * kQueries + v * V::N);
  for (int v = 0; v < NV; ++v) {
    const std::int64_t at = l + v * V::N;
    const V shrink = fresh ? V(0.0f) : exp2(fall[v]);
    top[v].store(w.top + at);
    if (fresh) sum[v].store(w.sum + at);
    else fma(V::load(w.sum + at), shrink, sum[v]).store(w.sum + at);
    if (fresh || reduce_min(shrink) == 1) continue;
    for (std::int64_t i = 0; i < d; ++i) (V::load(w.out + i * kQueries + at) * shrink).store(w.out + i * kQueries + at);
  }
}

struct Extent {
  std::int64_t queries, keys, d;
  std::int64_t offset;  // query t is at position offset + t among the keys
  bool causal;
  float scale;
  bool row_invariant;
  std::int64_t window = 0;  // keys that a query sees; 0: all
  float cap = 0;            // of the scaled scores; 0: none

  /// The first block of keys that the query at this position reads.
  std::int64_t first_block(std::int64_t position) const {
    return window > 0 && position >= window ? (position + 1 - window) / kKeys * kKeys : 0;
  }
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

/// Queries [t0, t1) of one head, at most kTogether blocks of them. Their number does not change any bit of the result.
/// K gives a head's keys or values: Rows, or PagedRows of ops/paged_attention.
template <class Isa, class W, class T, class K>
void query_blocks(Isa isa, Work<W>& work, attn::Rows<T> out, float* lse, attn::Rows<const T> q, const K& k, const K& v,
                  std::int64_t t0, std::int64_t t1, const Extent& e) {
  using V = simd::Vec<Isa>;
  const std::int64_t count = (t1 - t0 + kQueries - 1) / kQueries;
  const auto blocks = [&](auto f) {  // f(index, its first query, its queries, the end of the keys they see)
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t t = t0 + i * kQueries, rows = t1 - t < kQueries ? t1 - t : kQueries,
                         past = e.offset + t + rows;
      f(i, t, rows, e.causal && past < e.keys ? past : e.keys);
    }
  };
  const auto up = [](std::int64_t rows) { return (rows + V::N - 1) / V::N * V::N; };
  std::int64_t last = 0;
  blocks([&](std::int64_t i, std::int64_t t, std::int64_t rows, std::int64_t end) {
    attn::transpose_in(isa, work.queries[i].q, q.from(t), rows, up(rows), e.d);
    last = end;
  });
  for (std::int64_t j0 = e.first_block(e.offset + t0); j0 < last; j0 += kKeys) {
    const std::int64_t j1 = last - j0 < kKeys ? last : j0 + kKeys, next = last - j1 < kKeys ? last - j1 : kKeys;
    const auto kw = row_words(isa, work.k, k, j0, j1 - j0, e.d);
    const auto vw = column_words(isa, work.v, v, j0, j1 - j0, e.d);
    blocks([&](std::int64_t i, std::int64_t t, std::int64_t rows, std::int64_t end) {
      // Hardware prefetchers do not follow rows that are far apart. Each block prefetches a share; more at once would
      // stall.
      const std::int64_t from = next * i / count, to = next * (i + 1) / count;
      prefetch(k, j1 + from, to - from, e.d);
      prefetch(v, j1 + from, to - from, e.d);
      const std::int64_t at = e.offset + t, begin = e.first_block(at);
      if (end <= j0 || j0 < begin) return;
      auto& w = work.queries[i];
      const auto sight = attn::Sight::of((end < j1 ? end : j1) - j0, up(rows), j0, at, rows, e.causal, e.window);
      attn::multiply_scores(isa, work.p, kw, w.q, attn::words_of<W>(e.d), sight);
      if (e.cap > 0) attn::cap_scores(isa, work.p, e.cap / e.scale, sight);
      attn::for_spans(sight, [&](std::int64_t l, std::int64_t lanes, std::int64_t seen) {
        attn::in_chunks<4>(lanes / V::N, [&](auto nv, std::int64_t c) {
          softmax_lanes<Isa, nv>(isa, w, work.p, l + c * V::N, seen, sight, e.scale * kLog2e, j0 == begin, e.d,
                                 e.row_invariant);
        });
      });
      attn::multiply_weights(isa, w.out, vw, reinterpret_cast<const W*>(work.p), e.d, j0 > begin, sight);
    });
  }
  blocks([&](std::int64_t i, std::int64_t t, std::int64_t rows, std::int64_t) {
    finish(isa, work.queries[i], out.from(t), lse ? lse + t : nullptr, rows, e);
  });
}

/// The queries of `sequences` sequences of `heads` heads each, on all threads: query_blocks(work, sequence, head, t0, t1).
template <class W>
void for_query_blocks(Pool& pool, std::int64_t sequences, std::int64_t heads, std::int64_t queries, std::int64_t d,
                      auto&& run) {
  // Several tasks per thread, so that all threads finish at about the same time.
  const auto least = [](std::int64_t x, std::int64_t y) { return x < y ? x : y; };
  const std::int64_t blocks = (queries + kQueries - 1) / kQueries,
                     fair = sequences * heads * blocks / (8 * pool.threads()),
                     fitting = kTogetherBytes / Work<W>::block_bytes(d);
  const std::int64_t most = least(least(fair, fitting), kTogether), together = most < 1 ? 1 : most;
  const std::int64_t tasks = (blocks + together - 1) / together, all = sequences * heads * tasks;
  pool.reserve_scratch(Work<W>::bytes(d, together));
  // Head by head, so that its keys and values stay in the cache; within a head the last queries, which see the most
  // keys, come first.
  alignas(64) std::atomic<std::int64_t> next{0};
  const auto work_off = [&](int thread) {
    const attn::Registers<W> registers;
    Work<W> work(pool.scratch(thread), d, together);
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < all;) {
      const auto t0 = (tasks - 1 - i % tasks) * together * kQueries;
      run(work, i / tasks / heads, i / tasks % heads, t0, least(queries, t0 + together * kQueries));
    }
  };
  if (all > 1) pool.run(work_off);
  else work_off(0);
}

}  // namespace
}  // namespace hpcdl::cpu
