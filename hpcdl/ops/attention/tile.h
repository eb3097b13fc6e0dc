#pragma once
// What the attention kernels are made of: a small matrix product on registers, a transposition, and access to heads.
// Included by the .simd.cpp files of this folder only.
//
// Everything is computed with *queries in the lanes*: scores are held as S^T (keys, queries). Then keys and values are used
// as they lie in memory, one broadcast element at a time, the softmax needs no horizontal step, and only q and the
// output are transposed, once per block of queries.

#include "hpcdl/core/tensor.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::attn {

/// One head's rows: token t at base + t * stride.
template <class T> struct Rows {
  T* base;
  std::int64_t stride;
  T* operator[](std::int64_t t) const { return base + t * stride; }
};

template <class T> Rows<const T> head_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t d) {
  return {x.ptr<T>() + b * x.strides()[0] + h * (x.rank() == 4 ? x.strides()[2] : d), x.strides()[1]};
}
template <class T> Rows<T> head_rows(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t d) {
  return {x.ptr<T>() + b * x.strides()[0] + h * (x.rank() == 4 ? x.strides()[2] : d), x.strides()[1]};
}

/// Register tile: M rows x NV vectors of C.
template <class Isa> struct TileShape { static constexpr int M = 4, NV = 2; };
template <> struct TileShape<simd::Avx2> { static constexpr int M = 6, NV = 2; };
template <> struct TileShape<simd::Avx512> { static constexpr int M = 6, NV = 4; };

/// A is read one element at a time: element (m, k) at a[m * am + k * ak].
struct Scalars {
  const float* a;
  std::int64_t am, ak;
};

template <class Isa, int M, int NV>
void tile(float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t k, bool add) {
  using V = simd::Vec<Isa>;
  V acc[M][NV];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v] = add ? V::load(c + m * ldc + v * V::N) : V(0.0f);
  const float* p = a.a;
  for (std::int64_t i = 0; i < k; ++i) {
    V bv[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) bv[v] = V::load(b + v * V::N);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V s(p[m * a.am]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[m][v] = fma(s, bv[v], acc[m][v]);
    }
    b += ldb;
    p += a.ak;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v].store(c + m * ldc + v * V::N);
}

template <class Isa, int M, int NV>
void tile_rows(float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t m, std::int64_t k, bool add) {
  if constexpr (M > 1) {
    if (m < M) return tile_rows<Isa, M - 1, NV>(c, ldc, a, b, ldb, m, k, add);
  }
  tile<Isa, M, NV>(c, ldc, a, b, ldb, k, add);
}

template <class Isa, int NV>
void tile_columns(float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t m, int vectors,
                  std::int64_t k, bool add) {
  if constexpr (NV > 1) {
    if (vectors < NV) return tile_columns<Isa, NV - 1>(c, ldc, a, b, ldb, m, vectors, k, add);
  }
  constexpr int M = TileShape<Isa>::M;
  for (std::int64_t i = 0; i < m; i += M)
    tile_rows<Isa, M, NV>(c + i * ldc, ldc, {a.a + i * a.am, a.am, a.ak}, b, ldb, m - i < M ? m - i : M, k, add);
}

/// C (m, n) = A (m, k) B (k, n), or += . n is rounded up to whole vectors: rows of B and C must be that long.
template <class Isa>
void multiply(Isa, float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t m, std::int64_t n,
              std::int64_t k, bool add) {
  constexpr int N = simd::Vec<Isa>::N, NV = TileShape<Isa>::NV;
  const std::int64_t vectors = (n + N - 1) / N;
  for (std::int64_t v = 0; v < vectors; v += NV)
    tile_columns<Isa, NV>(c + v * N, ldc, a, b + v * N, ldb, m, static_cast<int>(vectors - v < NV ? vectors - v : NV), k, add);
}

#if defined(HPCDL_SIMD_AVX512)
/// r[i][j] -> r[j][i] for 16 x 16 floats.
inline void transpose_registers(simd::Avx512, __m512 (&r)[16]) {
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
#endif

/// dst[j][i] = factor * src[i][j] for i < rows, j < cols; dst[j][i] = 0 for rows <= i < rows_up.
template <class Isa, class T>
void transpose_in(Isa, float* dst, std::int64_t ldd, Rows<const T> src, std::int64_t rows, std::int64_t rows_up, std::int64_t cols,
                  float factor) {
#if defined(HPCDL_SIMD_AVX512)
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < rows_up; i += 16) {
    for (std::int64_t j = 0; j < cols; j += 16) {
      const int n = static_cast<int>(cols - j < 16 ? cols - j : 16);
      __m512 r[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = i + k < rows ? (V::load(src[i + k] + j, n) * V(factor)).v : _mm512_setzero_ps();
      transpose_registers(Isa{}, r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k)
        if (k < n) _mm512_storeu_ps(dst + (j + k) * ldd + i, r[k]);
    }
  }
#else
  for (std::int64_t i = 0; i < rows_up; ++i)
    for (std::int64_t j = 0; j < cols; ++j) dst[j * ldd + i] = i < rows ? factor * static_cast<float>(src[i][j]) : 0.0f;
#endif
}

/// dst[i][j] (+)= src[j][i] * factor[i] for i < rows, j < cols.
template <class Isa, class T>
void transpose_out(Isa, Rows<T> dst, const float* src, std::int64_t lds, std::int64_t rows, std::int64_t cols, const float* factor,
                   bool add) {
#if defined(HPCDL_SIMD_AVX512)
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < rows; i += 16) {
    for (std::int64_t j = 0; j < cols; j += 16) {
      const int n = static_cast<int>(cols - j < 16 ? cols - j : 16);
      __m512 r[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) r[k] = k < n ? _mm512_loadu_ps(src + (j + k) * lds + i) : _mm512_setzero_ps();
      transpose_registers(Isa{}, r);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        if (i + k >= rows) continue;
        V y = V(r[k]) * V(factor[i + k]);
        T* p = dst[i + k] + j;
        if (add) y = y + V::load(p, n);
        y.store(p, n);
      }
    }
  }
#else
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const float y = src[j * lds + i] * factor[i];
      dst[i][j] = T(add ? static_cast<float>(dst[i][j]) + y : y);
    }
#endif
}

/// Lanes of a masked block that share a number of keys: what all of them cannot see is not computed.
inline constexpr std::int64_t kSpan = 32;

/// Keys of a block that the span around lane l sees, when key 0 of the block stands `first` behind lane 0.
inline std::int64_t seen_by_span(std::int64_t l, std::int64_t lanes, std::int64_t keys, std::int64_t first) {
  const std::int64_t end = (l / kSpan + 1) * kSpan, last = (end < lanes ? end : lanes) - first;
  return last < 0 ? 0 : last < keys ? last : keys;
}

/// multiply() for scores (rows = keys, A = k or v) of a block; what a span does not see stays unwritten.
template <class Isa>
void multiply_scores(Isa isa, float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t keys, std::int64_t lanes,
                     std::int64_t d, bool masked, std::int64_t first) {
  if (!masked) return multiply(isa, c, ldc, a, b, ldb, keys, lanes, d, false);
  for (std::int64_t l = 0; l < lanes; l += kSpan)
    multiply(isa, c + l, ldc, a, b + l, ldb, seen_by_span(l, lanes, keys, first), lanes - l < kSpan ? lanes - l : kSpan, d, false);
}

/// multiply() of weights (B = probabilities, keys by lanes) over the keys that each span sees.
template <class Isa>
void multiply_weights(Isa isa, float* c, std::int64_t ldc, Scalars a, const float* b, std::int64_t ldb, std::int64_t d, std::int64_t lanes,
                      std::int64_t keys, bool add, bool masked, std::int64_t first) {
  if (!masked) return multiply(isa, c, ldc, a, b, ldb, d, lanes, keys, add);
  for (std::int64_t l = 0; l < lanes; l += kSpan)
    multiply(isa, c + l, ldc, a, b + l, ldb, d, lanes - l < kSpan ? lanes - l : kSpan, seen_by_span(l, lanes, keys, first), add);
}

/// How a block will be read: one row after the other, element by element (the memory itself will do if it is f32);
/// element by element across its rows (a dense copy: rows of a packed tensor lie a multiple of 1 KiB apart, so that
/// the same column of 64 rows falls into a handful of cache sets); or in whole vectors (zeros behind each row).
enum class Read { along, across, vectors };

template <class Isa, class T>
Rows<const float> float_rows(Isa, float* buffer, Rows<const T> src, std::int64_t rows, std::int64_t d, Read read) {
  using V = simd::Vec<Isa>;
  if constexpr (std::is_same_v<T, float>) {
    if (read == Read::along || (read == Read::vectors && d % V::N == 0)) return {src.base, src.stride};
  }
  const std::int64_t up = (d + V::N - 1) / V::N * V::N;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < d; j += V::N)
      V::load(src[i] + j, static_cast<int>(d - j < V::N ? d - j : V::N)).store(buffer + i * up + j);
  return {buffer, up};
}

}  // namespace hpcdl::attn
