#pragma once
// How the heads are passed to the products of tile.h: rows of a tensor, as in memory or rearranged into words. Included
// only by the .simd.cpp files of this folder.

#include <array>

#include "hpcdl/ops/attention/tile.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/tensor.h"

namespace hpcdl::attn {

/// One head's rows: token t at base + t * stride.
template <class T> struct Rows {
  using Element = std::remove_const_t<T>;
  T* base;
  std::int64_t stride;
  T* operator[](std::int64_t t) const { return base + t * stride; }
  Rows from(std::int64_t t) const { return {base + t * stride, stride}; }
  Rows at(std::int64_t t) const { return from(t); }
};

template <class T> Rows<const T> head_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t d) {
  return {x.ptr<T>() + b * x.strides()[0] + h * (x.rank() == 4 ? x.strides()[2] : d), x.strides()[1]};
}
template <class T> Rows<T> head_rows(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t d) {
  return {x.ptr<T>() + b * x.strides()[0] + h * (x.rank() == 4 ? x.strides()[2] : d), x.strides()[1]};
}

/// Elements in the vector at column j of rows of width d.
template <class Isa> int lanes_at(std::int64_t d, std::int64_t j) {
  constexpr int N = simd::Vec<Isa>::N;
  return static_cast<int>(d - j < N ? d - j : N);
}

template <class T> void prefetch(Rows<T> src, std::int64_t rows, std::int64_t d) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += 64 / static_cast<std::int64_t>(sizeof(T)))
      __builtin_prefetch(src[i] + j, 0, 2);
}
template <class T> void prefetch(Rows<T> src, std::int64_t first, std::int64_t rows, std::int64_t d) {
  prefetch(src.from(first), rows, d);
}

#if defined(HPCDL_SIMD_AVX512)
/// r[i][j] -> r[j][i] for 16 x 16 words.
inline void transpose_registers(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto pd = [](__m512 a) { return _mm512_castps_pd(a); };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i]), pd(t[i + 2])));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i]), pd(t[i + 2])));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i + 1]), pd(t[i + 3])));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i + 1]), pd(t[i + 3])));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// n <= 16 words; for pairs, 2n bf16, the last of which may be unpaired.
template <class T> __m512 load_words(const T* p, std::int64_t n, float) {
  return simd::Vec<simd::Avx512>::load(p, static_cast<int>(n < 16 ? n : 16)).v;
}
inline __m512 load_words(const bf16* p, std::int64_t n, Pair) {
  simd::touch<simd::Avx512>(p, n < 32 ? n : 32);
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : ~0u, p));
}
/// 16 pairs of bf16.
inline __m512i interleave(__m256i first, __m256i second) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}
#endif

/// A vector of words: `first`, or pairs of it and second().
template <class W, class V, class F> void store_word(float* to, V first, [[maybe_unused]] F&& second) {
  if constexpr (std::is_same_v<W, float>) {
    first.store(to);
  } else {
#if defined(HPCDL_SIMD_AVX512)
    alignas(64) static constexpr auto kZip = [] {
      std::array<std::uint16_t, 32> a{};
      for (unsigned i = 0; i < 32; ++i) a[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 16);
      return a;
    }();
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second().v, first.v));  // first's in the lower half
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kZip.data()), both));
#endif
  }
}

/// dst[j][i] = word j of src row i, for i < rows, j < words_of(d); 0 for rows <= i < rows_up.
template <class Isa, class W, class T>
void transpose_in(Isa, W* dst, Rows<const T> src, std::int64_t rows, std::int64_t rows_up, std::int64_t d) {
#if defined(HPCDL_SIMD_AVX512)
  const std::int64_t words = words_of<W>(d);
  for (std::int64_t i = 0; i < rows_up; i += 16) {
    for (std::int64_t j = 0; j < words; j += 16) {
      __m512 r[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k)
        r[k] = i + k < rows ? load_words(src[i + k] + j * kGroup<W>, d - j * kGroup<W>, W{}) : _mm512_setzero_ps();
      transpose_registers(r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k)
        if (j + k < words) _mm512_storeu_ps(dst + (j + k) * kQueries + i, r[k]);
    }
  }
#else
  for (std::int64_t i = 0; i < rows_up; ++i)
    for (std::int64_t j = 0; j < d; ++j) dst[j * kQueries + i] = i < rows ? static_cast<float>(src[i][j]) : 0.0f;
#endif
}

/// dst[i][j] (+)= src[j][i] * factor[i] (null: 1) for i < rows, j < d.
template <class Isa, class T>
void transpose_out(Isa, Rows<T> dst, const float* src, std::int64_t rows, std::int64_t d, const float* factor,
                   bool add) {
#if defined(HPCDL_SIMD_AVX512)
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < rows; i += 16) {
    for (std::int64_t j = 0; j < d; j += 16) {
      const int n = lanes_at<Isa>(d, j);
      __m512 r[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = k < n ? _mm512_loadu_ps(src + (j + k) * kQueries + i) : _mm512_setzero_ps();
      transpose_registers(r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        if (i + k >= rows) continue;
        V y = factor ? V(r[k]) * V(factor[i + k]) : V(r[k]);
        T* p = dst[i + k] + j;
        if (add) y = y + V::load(p, n);
        y.store(p, n);
      }
    }
  }
#else
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; ++j) {
      const float y = src[j * kQueries + i] * (factor ? factor[i] : 1.0f);
      dst[i][j] = T(add ? static_cast<float>(dst[i][j]) + y : y);
    }
#endif
}

/// Rows widened to floats, stored densely, each padded with zeros to whole vectors.
template <class Isa, class T>
Words<float> widen(Isa, float* buffer, Rows<const T> src, std::int64_t rows, std::int64_t d) {
  using V = simd::Vec<Isa>;
  const std::int64_t up = (d + V::N - 1) / V::N * V::N;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += V::N) V::load(src[i] + j, lanes_at<Isa>(d, j)).store(buffer + i * up + j);
  return {buffer, up, 1};
}

/// Words along d of each row. The copies are dense, because rows of a packed tensor are a multiple of 1 KiB apart, so
/// that a head's rows map to a few cache sets and evict each other.
template <class Isa, class W, class T>
Words<W> row_words(Isa isa, W* buffer, Rows<const T> src, std::int64_t rows, std::int64_t d) {
  if constexpr (std::is_same_v<W, float>) {
    return widen(isa, buffer, src, rows, d);
  } else {
#if defined(HPCDL_SIMD_AVX512)
    const std::int64_t up = (d + 31) / 32 * 16;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; 2 * j < d; j += 16)
        _mm512_storeu_ps(buffer + i * up + j, load_words(src[i] + 2 * j, d - 2 * j, W{}));
    return {buffer, up, 1};
#endif
  }
}

#if defined(HPCDL_SIMD_AVX512)
/// Rows i and i + 1 at columns j to j + 15, in pairs; 0 after the last row and column.
inline __m512i pair_rows(Rows<const bf16> src, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t d) {
  const auto n = static_cast<unsigned>(lanes_at<simd::Avx512>(d, j));
  const auto row = [&](std::int64_t r) {
    if (r >= rows) return _mm256_setzero_si256();
    simd::touch<simd::Avx512>(src[r] + j, n);
    return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), src[r] + j);
  };
  return interleave(row(i), row(i + 1));
}
#endif

/// Words across the rows, (words_of(rows), d up to whole vectors): B of a sum over the rows.
template <class Isa, class W, class T>
void across_rows(Isa isa, W* buffer, Rows<const T> src, std::int64_t rows, std::int64_t d) {
  if constexpr (std::is_same_v<W, float>) {
    widen(isa, buffer, src, rows, d);
  } else {
#if defined(HPCDL_SIMD_AVX512)
    const std::int64_t up = (d + 15) / 16 * 16;
    for (std::int64_t i = 0; i < words_of<W>(rows); ++i)
      for (std::int64_t j = 0; j < d; j += 16)
        _mm512_storeu_si512(buffer + i * up + j, pair_rows(src, 2 * i, j, rows, d));
#endif
  }
}

/// The same words by column: word (j, i) at a[j * am + i * ak], A of a sum over the rows.
template <class Isa, class W, class T>
Words<W> column_words(Isa isa, W* buffer, Rows<const T> src, std::int64_t rows, std::int64_t d) {
  if constexpr (kTiled<W>) {
#if defined(HPCDL_SIMD_AVX512)
    const std::int64_t words = words_of<W>(rows);
    for (std::int64_t i = 0; i < words; i += 16)
      for (std::int64_t j = 0; j < d; j += 16) {
        __m512 r[16];
#pragma GCC unroll 16
        for (int k = 0; k < 16; ++k) r[k] = _mm512_castsi512_ps(pair_rows(src, 2 * (i + k), j, rows, d));
        transpose_registers(r);
#pragma GCC unroll 16
        for (int k = 0; k < 16; ++k) _mm512_storeu_ps(buffer + (j + k) * words + i, r[k]);
      }
    return {buffer, words, 1};
#endif
  } else {
    across_rows(isa, buffer, src, rows, d);
    return {buffer, 1, (d + simd::Vec<Isa>::N - 1) / simd::Vec<Isa>::N * simd::Vec<Isa>::N};
  }
}

/// Of `rows` rows from `first` on.
template <class Isa, class W, class T>
Words<W> row_words(Isa isa, W* buffer, Rows<T> src, std::int64_t first, std::int64_t rows, std::int64_t d) {
  return row_words(isa, buffer, src.from(first), rows, d);
}
template <class Isa, class W, class T>
Words<W> column_words(Isa isa, W* buffer, Rows<T> src, std::int64_t first, std::int64_t rows, std::int64_t d) {
  return column_words(isa, buffer, src.from(first), rows, d);
}

}  // namespace hpcdl::attn
