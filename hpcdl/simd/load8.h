#pragma once
// Loads of 8-bit elements as floats, beside those of vec.h: int8_t, and f8_e4m3 without NaN. Whatever the type,
// load_wide<V>(p) reads V::N elements, and load_wide<V>(p, n) the first n of them, and 0.

#include <type_traits>

#include "hpcdl/core/f8.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::simd {

inline Vec<Scalar> widen_codes(const std::int8_t* p, Vec<Scalar>) { return static_cast<float>(*p); }
inline Vec<Scalar> widen_codes(const f8_e4m3* p, Vec<Scalar>) { return from_f8(*p); }

// An f8 is an f16 whose exponent is 8 too small.
#if defined(__AVX2__) && defined(__FMA__)
inline Vec<Avx2> widen_codes(const std::int8_t* p, Vec<Avx2>) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec<Avx2> widen_codes(const f8_e4m3* p, Vec<Avx2>) {
  const __m128i h = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
                sign = _mm_and_si128(h, _mm_set1_epi16(0x80)),
                f = _mm_or_si128(_mm_slli_epi16(sign, 8), _mm_slli_epi16(_mm_xor_si128(h, sign), 7));
  return _mm256_mul_ps(_mm256_cvtph_ps(f), _mm256_set1_ps(256));
}
#endif

#if defined(__AVX512F__) && defined(__AVX512BF16__)
inline Vec<Avx512> widen_codes(const std::int8_t* p, Vec<Avx512>) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec<Avx512> widen_codes(const f8_e4m3* p, Vec<Avx512>) {
  const __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                sign = _mm256_and_si256(h, _mm256_set1_epi16(0x80)),
                f = _mm256_or_si256(_mm256_slli_epi16(sign, 8), _mm256_slli_epi16(_mm256_xor_si256(h, sign), 7));
  return _mm512_mul_ps(_mm512_cvtph_ps(f), _mm512_set1_ps(256));
}
#endif

template <class V, class T> V load_wide(const T* p) {
  if constexpr (sizeof(T) == 1) return widen_codes(p, V());
  else return V::load(p);
}
template <class V, class T> V load_wide(const T* p, int n) {
  if constexpr (sizeof(T) == 1) {
    if (n == V::N) return load_wide<V>(p);
    T part[V::N] = {};
    std::memcpy(static_cast<void*>(part), p, static_cast<unsigned>(n));
    return widen_codes(part, V());
  } else {
    return V::load(p, n);
  }
}

}  // namespace hpcdl::simd
