#pragma once
// The small matrix product on which the attention kernels are built. Included only by the .simd.cpp files of this
// folder.
//
// Everything is computed with *queries in the lanes*: scores are held as S^T (keys, queries). Thus keys and values are
// used as they are in memory, one broadcast word at a time, the softmax needs no horizontal step, and only q and the
// output are transposed, once per block of queries.
//
// Operands consist of 32-bit words along the summed index: a float, or a Pair of bf16 where the CPU multiplies those,
// in vectors or in tile registers.

#include <cstring>
#include <type_traits>

#include "hpcdl/dtype.h"
#include "hpcdl/ops/attention/tile_product.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/simd/math.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::attn {

/// Two neighbours along the summed index. Products of bf16 are exact, their sums f32.
struct Pair {
  bf16 first, second;
};

/// Pairs for tile registers: the summed index is padded with zeros to whole registers.
struct TilePair : Pair {};

template <class W> inline constexpr std::int64_t kGroup = std::is_same_v<W, float> ? 1 : 2;
template <class W> inline constexpr bool kTiled = std::is_same_v<W, TilePair>;

/// f(W{}), where W is the word type for products of operands stored as T: pairs, or floats to which all operands are
/// widened.
template <class Isa, class T, class F> void with_words(Isa, F&& f) {
  if constexpr (std::is_same_v<Isa, simd::Avx512> && std::is_same_v<T, bf16>) {
    if (simd::has_tiles()) f(TilePair{});
    else f(Pair{});
  } else {
    f(float{});
  }
}

/// A thread's state while it multiplies words of type W.
template <class W> struct Registers {
  Registers() {}
};
#if defined(HPCDL_SIMD_AVX512)
template <> struct Registers<TilePair> : TilesInUse {};
#endif

/// The number of words, and of elements, for `n` elements of a sum, including padding zeros.
template <class W> constexpr std::int64_t words_of(std::int64_t n) {
  const std::int64_t words = (n + kGroup<W> - 1) / kGroup<W>;
  return kTiled<W> ? whole_tiles(words) : words;
}
template <class W> constexpr std::int64_t padded(std::int64_t n) { return words_of<W>(n) * kGroup<W>; }

/// Rows of a product.
template <class W> constexpr std::int64_t rows_of(std::int64_t n) { return kTiled<W> ? whole_tiles(n) : n; }

/// Lanes of a block of queries, and keys of a block of keys.
inline constexpr std::int64_t kQueries = 64, kKeys = 64;
inline constexpr std::integral_constant<std::int64_t, kQueries> kRow;

/// acc + a b.
template <class W, class V> V multiply_add(V a, V b, V acc) {
#if defined(HPCDL_SIMD_AVX512)
  if constexpr (std::is_same_v<W, Pair>)
    return _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v));
#endif
  return fma(a, b, acc);
}

template <class W> float bits(const W* p) {
  float f;
  std::memcpy(&f, p, sizeof f);
  return f;
}

/// f(constant, begin) over [0, n): `Max` at a time, then the rest at once.
template <int Max, class F> [[gnu::always_inline]] inline void in_chunks(std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + Max <= n; i += Max) f(std::integral_constant<int, Max>{}, i);
  const auto rest = [&]<int R>(auto self, std::integral_constant<int, R> r) {
    if constexpr (R > 0) {
      if (n - i == R) f(r, i);
      else self(self, std::integral_constant<int, R - 1>{});
    }
  };
  rest(rest, std::integral_constant<int, Max - 1>{});
}

/// Register tile: M rows x NV vectors of C.
template <class Isa> struct TileShape {
  static constexpr int M = 4, NV = 2;
};
template <> struct TileShape<simd::Avx2> {
  static constexpr int M = 6, NV = 2;
};
template <> struct TileShape<simd::Avx512> {
  static constexpr int M = 6, NV = 4;
};

/// A is read one word at a time: word (m, k) at a[m * am + k * ak].
template <class W> struct Words {
  const W* a;
  std::int64_t am, ak;
};

/// One register tile: M rows x NV vectors of C, = A B or, if Add, += A B.
template <class Isa, int M, int NV, bool Add, class W, class Ld>
[[gnu::always_inline]] inline void tile(float* c, Ld ldc, Words<W> a, const W* b, Ld ldb, std::int64_t k) {
  using V = simd::Vec<Isa>;
  V acc[M][NV];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v] = Add ? V::load(c + m * ldc + v * V::N) : V(0.0f);
  const W* p = a.a;
  for (std::int64_t i = 0; i < k; ++i) {
    V bv[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) bv[v] = V::load(reinterpret_cast<const float*>(b) + v * V::N);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const V s(bits(p + m * a.am));
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[m][v] = multiply_add<W>(s, bv[v], acc[m][v]);
    }
    b += ldb;
    p += a.ak;
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v].store(c + m * ldc + v * V::N);
}

/// m rows x NV vectors of C. The tiles are part of one loop, not calls: sums are short here (k is 32 to 128), and the
/// first steps of a tile then overlap the last ones of the previous tile (0.98 of the multiplier's peak at k = 32; as
/// calls 0.86).
template <class Isa, int NV, bool Add, class W, class Ld>
[[gnu::noinline]] void tiles(float* c, Ld ldc, Words<W> a, const W* b, Ld ldb, std::int64_t m, std::int64_t k) {
  constexpr int M = TileShape<Isa>::M,
                kTall = 2 * NV <= TileShape<Isa>::NV ? 2 * M : M;  // as many accumulators for few vectors
  const auto rows = [&](auto n, std::int64_t i) __attribute__((always_inline)) {
    tile<Isa, n, NV, Add>(c + i * ldc, ldc, Words<W>{a.a + i * a.am, a.am, a.ak}, b, ldb, k);
  };
  std::int64_t i = 0;
  if constexpr (kTall > M)
    for (; i + kTall <= m; i += kTall) rows(std::integral_constant<int, kTall>{}, i);
  in_chunks<M>(m - i, [&](auto n, std::int64_t j) __attribute__((always_inline)) { rows(n, i + j); });
}

/// C (m, n) = A (m, k) B (k, n), or += ; k in words. n is rounded up to whole vectors: rows of B and C must be that
/// long. Ld: std::int64_t, or a constant, which makes the addresses of a tile's rows free. Tile registers require A
/// with ak = 1, and round up m and k, too.
template <class Isa, class W, class Ld>
void multiply(Isa, float* c, Ld ldc, Words<W> a, const W* b, Ld ldb, std::int64_t m, std::int64_t n, std::int64_t k,
              bool add) {
  if constexpr (kTiled<W>) {
#if defined(HPCDL_SIMD_AVX512)
    multiply_tiles(c, ldc, a.a, a.am, b, ldb, m, n, k, add);
#endif
  } else {
    constexpr int N = simd::Vec<Isa>::N;
    in_chunks<TileShape<Isa>::NV>((n + N - 1) / N, [&](auto nv, std::int64_t v) {
      if (add) tiles<Isa, nv, true>(c + v * N, ldc, a, b + v * N, ldb, m, k);
      else tiles<Isa, nv, false>(c + v * N, ldc, a, b + v * N, ldb, m, k);
    });
  }
}

/// Which keys of a block the lanes of a block of queries see: all of them, or with a causal mask those at or before
/// their own position.
struct Sight {
  std::int64_t keys, lanes;
  std::int64_t first;  // position of key 0 relative to lane 0
  bool masked;
  std::int64_t window = 0;  // only the last `window` of those; 0: all. Needs `masked`

  /// Of `keys` keys from position `key` on and queries from position `query` on, of which `rows` exist.
  static Sight of(std::int64_t keys, std::int64_t lanes, std::int64_t key, std::int64_t query, std::int64_t rows,
                  bool causal, std::int64_t window) {
    const bool late = window > 0 && key <= query + rows - 1 - window;  // the last query does not see the first key
    return {keys, lanes, key - query, causal && (late || key + keys > query + 1), late ? window : 0};
  }
};

// The masks of a Sight: hide() replaces x by `hidden` in the lanes whose position, relative to the block's first key,
// does not see `key`.
template <class Isa> struct AllKeys {
  static constexpr bool kAny = false, kWindow = false;
};
template <class Isa> struct KeysBefore {
  static constexpr bool kAny = true, kWindow = false;
  simd::Vec<Isa> hide(simd::Vec<Isa> position, float key, simd::Vec<Isa> hidden, simd::Vec<Isa> x) const {
    return select(position < simd::Vec<Isa>(key), hidden, x);
  }
};
template <class Isa> struct KeysInWindow {
  static constexpr bool kAny = true, kWindow = true;
  float window;
  simd::Vec<Isa> hide(simd::Vec<Isa> position, float key, simd::Vec<Isa> hidden, simd::Vec<Isa> x) const {
    using V = simd::Vec<Isa>;
    return select(position < V(key), hidden, select(position < V(key + window), x, hidden));
  }
};
/// f(the mask of s)
template <class Isa, class F> void with_mask(Isa, const Sight& s, F&& f) {
  if (s.window > 0) f(KeysInWindow<Isa>{static_cast<float>(s.window)});
  else if (s.masked) f(KeysBefore<Isa>{});
  else f(AllKeys<Isa>{});
}

/// Lanes of a masked block for which the keys are cut off together: keys that none of them sees are not computed.
inline constexpr std::int64_t kSpan = 32;

/// f(first lane, lanes, keys that any of them sees) for each span of lanes.
template <class F> void for_spans(const Sight& s, F&& f) {
  if (!s.masked) return f(std::int64_t{0}, s.lanes, s.keys);
  for (std::int64_t l = 0; l < s.lanes; l += kSpan) {
    const std::int64_t end = l + kSpan < s.lanes ? l + kSpan : s.lanes, last = end - s.first;
    f(l, end - l, last < 0 ? 0 : last < s.keys ? last : s.keys);
  }
}

/// multiply() for the scores (rows = keys, A = k or v; `words` per row) of a block; scores of keys that a span does not
/// see stay unwritten.
template <class Isa, class W>
void multiply_scores(Isa isa, float* c, Words<W> a, const W* b, std::int64_t words, const Sight& s) {
  for_spans(s, [&](std::int64_t l, std::int64_t lanes, std::int64_t keys) {
    multiply(isa, c + l, kRow, a, b + l, kRow, keys, lanes, words, false);
  });
}

/// Scores x of a block -> c tanh(x / c), where they are seen.
template <class Isa> void cap_scores(Isa, float* scores, float c, const Sight& s) {
  using V = simd::Vec<Isa>;
  for_spans(s, [&](std::int64_t l0, std::int64_t lanes, std::int64_t keys) {
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t l = l0; l < l0 + lanes; l += V::N) {
        float* const at = scores + j * kQueries + l;
        (V(c) * simd::tanh<Isa>(V::load(at) / V(c))).store(at);
      }
  });
}

/// multiply() by weights (B = probabilities, keys by lanes) over the keys that each span sees.
template <class Isa, class W>
void multiply_weights(Isa isa, float* c, Words<W> a, const W* b, std::int64_t d, bool add, const Sight& s) {
  for_spans(s, [&](std::int64_t l, std::int64_t lanes, std::int64_t keys) {
    multiply(isa, c + l, kRow, a, b + l, kRow, d, lanes, words_of<W>(keys), add);
  });
}

}  // namespace hpcdl::attn
