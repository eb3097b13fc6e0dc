#pragma once
// Codes of 8 bits: loads of uint8_t, beside those of load8.h, and stores. store_codes(v, p) stores the V::N elements of v,
// which must be whole numbers that T can hold, as int8_t or uint8_t; store_codes(v, p, n) the first n of them.

#include <cstdint>

#include "hpcdl/simd/load8.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::simd {

inline Vec<Scalar> widen_codes(const std::uint8_t* p, Vec<Scalar>) { return static_cast<float>(*p); }
template <class T> inline void store_codes(Vec<Scalar> v, T* p) { *p = static_cast<T>(static_cast<int>(v.v)); }

#if defined(__AVX2__) && defined(__FMA__)
inline Vec<Avx2> widen_codes(const std::uint8_t* p, Vec<Avx2>) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
template <class T> inline void store_codes(Vec<Avx2> v, T* p) {
  const __m256i i = _mm256_cvtps_epi32(v.v);
  const __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), T(-1) < T(0) ? _mm_packs_epi16(h, h) : _mm_packus_epi16(h, h));
}
#endif

#if defined(__AVX512F__) && defined(__AVX512BF16__)
inline Vec<Avx512> widen_codes(const std::uint8_t* p, Vec<Avx512>) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
template <class T> inline void store_codes(Vec<Avx512> v, T* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.v)));
}
#endif

template <class V, class T> void store_codes(V v, T* p, int n) {
  T part[V::N];
  store_codes(v, part);
  std::memcpy(p, part, static_cast<unsigned>(n));
}

template <class V, class T> V load_codes(const T* p, Whole) { return load_wide<V>(p); }
template <class V, class T> V load_codes(const T* p, int n) { return load_wide<V>(p, n); }
template <class V, class T> void store_codes(V v, T* p, Whole) { store_codes(v, p); }

}  // namespace hpcdl::simd
