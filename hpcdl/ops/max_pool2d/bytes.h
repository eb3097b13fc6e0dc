#pragma once
// Small integers in float lanes, stored as bytes (.simd.cpp only).

#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Scalar> v, simd::Whole) {
  *p = static_cast<std::uint8_t>(v.v);
}
inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Scalar> v, int n) {
  if (n > 0) *p = static_cast<std::uint8_t>(v.v);
}

#if defined(__AVX2__)
inline __m128i eight_bytes(__m256 v) {
  const __m256i i = _mm256_cvtps_epi32(v);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  return _mm_packus_epi16(words, words);
}
inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Avx2> v, simd::Whole) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), eight_bytes(v.v));
}
inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Avx2> v, int n) {
  std::uint8_t t[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(t), eight_bytes(v.v));
  std::memcpy(p, t, static_cast<unsigned>(n));
}
#endif
#if defined(__AVX512F__) && defined(__AVX512BF16__)
inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Avx512> v, simd::Whole) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.v)));
}
inline void store_bytes(std::uint8_t* p, simd::Vec<simd::Avx512> v, int n) {
  simd::touch<simd::Avx512>(p, n);
  _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1u << n) - 1u), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.v)));
}
#endif

/// Loads a register's worth of bytes at p as floats; lanes from n on are 0.
template <class V> V load_bytes(const std::uint8_t* p, simd::Whole);
template <class V> V load_bytes(const std::uint8_t* p, int n) {
  std::uint8_t t[16] = {};
  std::memcpy(t, p, static_cast<unsigned>(n));
  return load_bytes<V>(t, simd::Whole{});
}
template <> inline simd::Vec<simd::Scalar> load_bytes(const std::uint8_t* p, simd::Whole) {
  return static_cast<float>(*p);
}
#if defined(__AVX2__)
template <> inline simd::Vec<simd::Avx2> load_bytes(const std::uint8_t* p, simd::Whole) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#endif
#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <> inline simd::Vec<simd::Avx512> load_bytes(const std::uint8_t* p, simd::Whole) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#endif

}  // namespace
}  // namespace hpcdl::cpu
