#pragma once
// The keys or values of one head that lie in pages, as the products of attention read them. Included only by
// paged_attention.simd.cpp.

#include <cstring>

#include "hpcdl/ops/attention/query_blocks.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/simd/load8.h"

namespace hpcdl::attn {

/// Rows of codes: row t stands for its codes times scale[t].
template <class T> struct ScaledRows : Rows<const T> {
  const float* scale;
};

template <class T> struct PagedRows {
  using Piece = std::conditional_t<kHasScales<T>, ScaledRows<T>, Rows<const T>>;
  const T* base;              // of page 0
  std::int64_t page, d;       // elements of a page, of a row
  const std::int32_t* pages;  // of the sequence

  /// Row t, and those after it up to the end of its page.
  Piece at(std::int64_t t) const {
    const T* const first = base + pages[t / kPageTokens] * page;
    const Rows<const T> rows{first + t % kPageTokens * d, d};
    if constexpr (kHasScales<T>)
      return {rows, reinterpret_cast<const float*>(first + kPageTokens * d) + t % kPageTokens};
    else return rows;
  }

  /// f(rows, first, count) for the pieces of [begin, begin + count) that lie in one page each; `first` counts from 0.
  template <class F> void for_pieces(std::int64_t begin, std::int64_t count, F&& f) const {
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t room = kPageTokens - (begin + i) % kPageTokens, n = count - i < room ? count - i : room;
      f(at(begin + i), i, n);
      i += n;
    }
  }
};

template <class T> void prefetch(const PagedRows<T>& src, std::int64_t first, std::int64_t rows, std::int64_t d) {
  src.for_pieces(first, rows, [&](const auto& piece, std::int64_t, std::int64_t n) {
    prefetch(static_cast<const Rows<const T>&>(piece), n, d);
  });
}

/// The elements of codes, stored as those of other rows are (attention/pack.h).
template <class Isa, class T>
Words<float> row_words(Isa, float* buffer, const ScaledRows<T>& src, std::int64_t rows, std::int64_t d) {
  using V = simd::Vec<Isa>;
  const std::int64_t up = (d + V::N - 1) / V::N * V::N;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += V::N)
      (simd::load_wide<V>(src[i] + j, lanes_at<Isa>(d, j)) * V(src.scale[i])).store(buffer + i * up + j);
  return {buffer, up, 1};
}
template <class Isa, class T>
Words<float> column_words(Isa isa, float* buffer, const ScaledRows<T>& src, std::int64_t rows, std::int64_t d) {
  return {buffer, 1, row_words(isa, buffer, src, rows, d).am};
}

/// Words of a copy without gaps between the pages; or floats, which widen() copies in any case.
template <class Isa, class W, class T, class F>
Words<W> words_of_copy(W* buffer, const PagedRows<T>& src, std::int64_t first, std::int64_t rows, std::int64_t d,
                       F&& words) {
  if constexpr (std::is_same_v<W, float>) {
    Words<W> all{};
    src.for_pieces(first, rows, [&](const auto& piece, std::int64_t i, std::int64_t n) {
      const std::int64_t up = (d + simd::Vec<Isa>::N - 1) / simd::Vec<Isa>::N * simd::Vec<Isa>::N;
      const auto here = words(buffer + i * up, piece, n);
      if (i == 0) all = here;
    });
    return all;
  } else {
    alignas(64) T copy[96 * 256];
    src.for_pieces(first, rows, [&](Rows<const T> piece, std::int64_t i, std::int64_t n) {
      std::memcpy(copy + i * d, piece.base, static_cast<std::size_t>(n * d) * sizeof(T));
    });
    return words(buffer, Rows<const T>{copy, d}, rows);
  }
}
template <class Isa, class W, class T>
Words<W> row_words(Isa isa, W* buffer, const PagedRows<T>& src, std::int64_t first, std::int64_t rows, std::int64_t d) {
  return words_of_copy<Isa>(buffer, src, first, rows, d,
                            [&](W* to, const auto& from, std::int64_t n) { return row_words(isa, to, from, n, d); });
}
template <class Isa, class W, class T>
Words<W> column_words(Isa isa, W* buffer, const PagedRows<T>& src, std::int64_t first, std::int64_t rows,
                      std::int64_t d) {
  return words_of_copy<Isa>(buffer, src, first, rows, d,
                            [&](W* to, const auto& from, std::int64_t n) { return column_words(isa, to, from, n, d); });
}

}  // namespace hpcdl::attn
