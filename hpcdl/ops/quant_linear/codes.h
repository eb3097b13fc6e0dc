#pragma once
// What decoders need besides simd/vec.h: registers of Vec<Isa>::N integers of 32 bits. For kernel files only.
//
//   load_u8(p) load_i8(p)   N bytes, each widened
//   load_nibbles<odd>(p)    N codes of 4 bits: N/2 bytes, the code in the high bits first, or that in the low bits; in a
//                           scalar build one code of the byte, the second one if `odd`
//   >> << & | - to_float    of every lane
//   bits_of_float           the floats with these bits
//   rounded(v)              v, by itself: the compiler does not join the product that it is with a sum that follows, so
//                           that a value has the bits that the programs of its format compute
//   Table16::look_up(codes)
//   half_at(p, Isa())       the F16 at any address

#include <cstdint>
#include <cstring>

#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {

template <class Isa> struct Codes;
template <class Isa> struct Table16;

template <> struct Codes<simd::Scalar> {
  std::uint32_t v;
  static Codes load_u8(const std::uint8_t* p) { return {*p}; }
  static Codes load_i8(const std::int8_t* p) { return {static_cast<std::uint32_t>(std::int32_t{*p})}; }
  template <bool odd, bool low_first = false> static Codes load_nibbles(const std::uint8_t* p) {
    return {odd != low_first ? *p & 15u : *p >> 4};
  }
  friend Codes operator>>(Codes a, int n) { return {a.v >> n}; }
  friend Codes operator<<(Codes a, int n) { return {a.v << n}; }
  friend Codes operator&(Codes a, int b) { return {a.v & static_cast<std::uint32_t>(b)}; }
  friend Codes operator|(Codes a, Codes b) { return {a.v | b.v}; }
  friend Codes operator-(Codes a, int b) { return {a.v - static_cast<std::uint32_t>(b)}; }
  simd::Vec<simd::Scalar> bits_of_float() const { return __builtin_bit_cast(float, v); }
  simd::Vec<simd::Scalar> to_float() const { return static_cast<float>(static_cast<std::int32_t>(v)); }
};
template <> struct Table16<simd::Scalar> {
  const float* values;
  explicit Table16(const float* p) : values(p) {}
  simd::Vec<simd::Scalar> look_up(Codes<simd::Scalar> c) const { return values[c.v]; }
};
inline simd::Vec<simd::Scalar> rounded(simd::Vec<simd::Scalar> v) { return v; }  // there is nothing to join it with
inline float half_at(const std::uint8_t* p, simd::Scalar) {
  f16 h;
  std::memcpy(static_cast<void*>(&h), p, sizeof h);
  return h;
}

#if defined(__AVX2__) && defined(__FMA__)
template <> struct Codes<simd::Avx2> {
  __m256i v;
  static __m128i eight(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
  static Codes load_u8(const std::uint8_t* p) { return {_mm256_cvtepu8_epi32(eight(p))}; }
  static Codes load_i8(const std::int8_t* p) { return {_mm256_cvtepi8_epi32(eight(p))}; }
  template <bool odd, bool low_first = false> static Codes load_nibbles(const std::uint8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, 4);
    const __m128i b = _mm_cvtsi32_si128(four), low = _mm_set1_epi8(15);
    const __m128i of_high = _mm_and_si128(_mm_srli_epi16(b, 4), low), of_low = _mm_and_si128(b, low);
    return {_mm256_cvtepu8_epi32(low_first ? _mm_unpacklo_epi8(of_low, of_high) : _mm_unpacklo_epi8(of_high, of_low))};
  }
  friend Codes operator>>(Codes a, int n) { return {_mm256_srli_epi32(a.v, n)}; }
  friend Codes operator<<(Codes a, int n) { return {_mm256_slli_epi32(a.v, n)}; }
  friend Codes operator&(Codes a, int b) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(b))}; }
  friend Codes operator|(Codes a, Codes b) { return {_mm256_or_si256(a.v, b.v)}; }
  friend Codes operator-(Codes a, int b) { return {_mm256_sub_epi32(a.v, _mm256_set1_epi32(b))}; }
  simd::Vec<simd::Avx2> bits_of_float() const { return _mm256_castsi256_ps(v); }
  simd::Vec<simd::Avx2> to_float() const { return _mm256_cvtepi32_ps(v); }
};
template <> struct Table16<simd::Avx2> {
  __m256 low, high;
  explicit Table16(const float* p) : low(_mm256_loadu_ps(p)), high(_mm256_loadu_ps(p + 8)) {}
  simd::Vec<simd::Avx2> look_up(Codes<simd::Avx2> c) const {
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(c.v, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, c.v), _mm256_permutevar8x32_ps(high, c.v), is_high);
  }
};
inline simd::Vec<simd::Avx2> rounded(simd::Vec<simd::Avx2> v) {
  asm("" : "+x"(v.v));
  return v;
}
inline float half_at(const std::uint8_t* p, simd::Avx2) {
  std::uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return _cvtsh_ss(h);
}
#endif

#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <> struct Codes<simd::Avx512> {
  __m512i v;
  static __m128i sixteen(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static Codes load_u8(const std::uint8_t* p) { return {_mm512_cvtepu8_epi32(sixteen(p))}; }
  static Codes load_i8(const std::int8_t* p) { return {_mm512_cvtepi8_epi32(sixteen(p))}; }
  template <bool odd, bool low_first = false> static Codes load_nibbles(const std::uint8_t* p) {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
    const __m128i of_high = _mm_and_si128(_mm_srli_epi16(b, 4), low), of_low = _mm_and_si128(b, low);
    return {_mm512_cvtepu8_epi32(low_first ? _mm_unpacklo_epi8(of_low, of_high) : _mm_unpacklo_epi8(of_high, of_low))};
  }
  friend Codes operator>>(Codes a, int n) { return {_mm512_srli_epi32(a.v, static_cast<unsigned>(n))}; }
  friend Codes operator<<(Codes a, int n) { return {_mm512_slli_epi32(a.v, static_cast<unsigned>(n))}; }
  friend Codes operator&(Codes a, int b) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(b))}; }
  friend Codes operator|(Codes a, Codes b) { return {_mm512_or_si512(a.v, b.v)}; }
  friend Codes operator-(Codes a, int b) { return {_mm512_sub_epi32(a.v, _mm512_set1_epi32(b))}; }
  simd::Vec<simd::Avx512> bits_of_float() const { return _mm512_castsi512_ps(v); }
  simd::Vec<simd::Avx512> to_float() const { return _mm512_cvtepi32_ps(v); }
};
template <> struct Table16<simd::Avx512> {
  __m512 values;
  explicit Table16(const float* p) : values(_mm512_loadu_ps(p)) {}
  simd::Vec<simd::Avx512> look_up(Codes<simd::Avx512> c) const { return _mm512_permutexvar_ps(c.v, values); }
};
inline simd::Vec<simd::Avx512> rounded(simd::Vec<simd::Avx512> v) {
  asm("" : "+v"(v.v));
  return v;
}
inline float half_at(const std::uint8_t* p, simd::Avx512) { return half_at(p, simd::Avx2()); }
#endif

}  // namespace hpcdl::cpu
