#pragma once
// The keys or values of one head that lie in pages, as the products of attention read them. Included only by
// paged_attention.simd.cpp.

#include <cstring>

#include "hpcdl/ops/attention/query_blocks.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::attn {

template <class T> struct PagedRows {
  using Element = T;
  const T* base;              // of page 0
  std::int64_t page, d;       // elements of a page, of a row
  const std::int32_t* pages;  // of the sequence

  /// Row t, and those after it up to the end of its page.
  Rows<const T> at(std::int64_t t) const { return {base + pages[t / kPageTokens] * page + t % kPageTokens * d, d}; }

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
  src.for_pieces(first, rows, [&](Rows<const T> piece, std::int64_t, std::int64_t n) { prefetch(piece, n, d); });
}

/// Words of a copy without gaps between the pages; or floats, which widen() copies in any case.
template <class Isa, class W, class T, class F>
Words<W> words_of_copy(W* buffer, const PagedRows<T>& src, std::int64_t first, std::int64_t rows, std::int64_t d,
                       F&& words) {
  if constexpr (std::is_same_v<W, float>) {
    Words<W> all{};
    src.for_pieces(first, rows, [&](Rows<const T> piece, std::int64_t i, std::int64_t n) {
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
                            [&](W* to, Rows<const T> from, std::int64_t n) { return row_words(isa, to, from, n, d); });
}
template <class Isa, class W, class T>
Words<W> column_words(Isa isa, W* buffer, const PagedRows<T>& src, std::int64_t first, std::int64_t rows,
                      std::int64_t d) {
  return words_of_copy<Isa>(buffer, src, first, rows, d, [&](W* to, Rows<const T> from, std::int64_t n) {
    return column_words(isa, to, from, n, d);
  });
}

}  // namespace hpcdl::attn
