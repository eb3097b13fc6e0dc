#pragma once
// The integer operations that 4-bit kernels need in addition to simd/vec.h: registers of L dwords, one per row of a
// tile, as int4_layout.h stores them. L is Vec<Isa>::N. Kernel files only.

#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {

/// load(p, n)      n <= L dwords, the others 0
/// low, high       the nibbles as bytes: 4 consecutive k per row
/// dot(acc, u, s)  acc[row] += sum of 4 products u8 * s8; `s` holds the 4 inputs, the same for every row
/// value<j>(q)     weight 8b + j of each row as q - 8, in float
template <class Isa> struct Int4Vec;

namespace {
inline std::int32_t load_dword(const void* p) {
  std::int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
}  // namespace

template <> struct Int4Vec<simd::Scalar> {
  using V = simd::Vec<simd::Scalar>;
  using Int = std::int32_t;
  static Int load(const std::uint8_t* p, int) { return load_dword(p); }
  static Int low(Int q) { return q & 0x0f0f0f0f; }
  static Int high(Int q) { return static_cast<Int>((static_cast<std::uint32_t>(q) >> 4) & 0x0f0f0f0fu); }
  static Int set(std::int32_t v) { return v; }
  static Int add(Int a, Int b) { return a + b; }
  static Int dot(Int acc, Int u, const void* s) {
    const auto* x = static_cast<const signed char*>(s);
    for (int j = 0; j < 4; ++j) acc += ((u >> 8 * j) & 0xff) * x[j];
    return acc;
  }
  static V to_float(Int a) { return static_cast<float>(a); }
  template <int J> static V value(Int q) {
    constexpr int shift = J < 4 ? 8 * J : 8 * (J - 4) + 4;
    return static_cast<float>(static_cast<int>((static_cast<std::uint32_t>(q) >> shift) & 15u) - 8);
  }
  static void store_i8(V rounded, std::int8_t* p) { *p = static_cast<std::int8_t>(static_cast<int>(rounded.v)); }
};

#if defined(__AVX2__) && defined(__FMA__)
template <> struct Int4Vec<simd::Avx2> {
  using V = simd::Vec<simd::Avx2>;
  using Int = __m256i;
  static Int load(const std::uint8_t* p, int n) {
    if (n >= 8) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    simd::touch<simd::Avx2>(p, 4 * n);
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), V::tail(n));
  }
  static Int low(Int q) { return _mm256_and_si256(q, _mm256_set1_epi8(15)); }
  static Int high(Int q) { return _mm256_and_si256(_mm256_srli_epi16(q, 4), _mm256_set1_epi8(15)); }
  static Int set(std::int32_t v) { return _mm256_set1_epi32(v); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  /// The 16-bit sums of vpmaddubsw do not saturate: 2 * 15 * 127 is far from 2^15.
  static Int dot(Int acc, Int u, const void* s) {
    const __m256i pairs = _mm256_maddubs_epi16(u, _mm256_set1_epi32(load_dword(s)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static V to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  template <int J> static V value(Int q) {
    constexpr int shift = J < 4 ? 8 * J : 8 * (J - 4) + 4;
    const __m256i nibble = _mm256_and_si256(_mm256_srli_epi32(q, shift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(nibble, _mm256_set1_epi32(8)));
  }
  static void store_i8(V rounded, std::int8_t* p) {
    const __m256i i = _mm256_cvtps_epi32(rounded.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
};
#endif

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
template <> struct Int4Vec<simd::Avx512> {
  using V = simd::Vec<simd::Avx512>;
  using Int = __m512i;
  static Int load(const std::uint8_t* p, int n) {
    if (n >= 16) return _mm512_loadu_si512(p);
    simd::touch<simd::Avx512>(p, 4 * n);
    return _mm512_maskz_loadu_epi32(V::tail(n), p);
  }
  static Int low(Int q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }
  static Int high(Int q) { return _mm512_and_si512(_mm512_srli_epi16(q, 4), _mm512_set1_epi8(15)); }
  static Int set(std::int32_t v) { return _mm512_set1_epi32(v); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int dot(Int acc, Int u, const void* s) {
    return _mm512_dpbusd_epi32(acc, u, _mm512_set1_epi32(load_dword(s)));
  }
  static V to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  /// vpermps reads the low 4 bits of each index: a shift and a look-up, without mask or conversion.
  template <int J> static V value(Int q) {
    constexpr int shift = J < 4 ? 8 * J : 8 * (J - 4) + 4;
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(q, shift), table);
  }
  static void store_i8(V rounded, std::int8_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(rounded.v)));
  }
};
#endif

}  // namespace hpcdl::cpu
