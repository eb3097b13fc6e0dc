#pragma once
// The CPU vector vocabulary: Vec<Isa> is one register of floats. Kernels are written once against it.
//
//   Vec<Isa>::N                        lanes
//   V::load(p) / V::load(p, n)         p: float, bf16 or f16; the second form reads n < N elements and fills with 0
//   V::load(p, n, fill)                fills the other lanes with `fill`
//   v.store(p) / v.store(p, n)         rounds to nearest even for bf16/f16
//   v.stream(p)                        non-temporal store where p is aligned to the register, else a plain store
//   + - * /  fma(a,b,c)=a*b+c  min max abs sqrt  reduce_add reduce_max reduce_min
//   reciprocal(v)  1/v with relative error < 2e-7, for 2^-125 <= |v| <= 2^125; division costs several times as much
//   a < b ... -> Mask;  select(mask, yes, no)
//   v.first(n, fill)                   its first n lanes, the others are `fill`
//   round(v)  (nearest even)   fraction(v) = v - floor(v), 0 for infinities   scale2(v, n) = v * 2^floor(n)
//   mantissa/exponent for log
//
// Elementary functions are in math.h. Besides Scalar, only the set of this translation unit is defined.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "hpcdl/core/red_zone.h"
#include "hpcdl/dtype.h"
#include "hpcdl/simd/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace hpcdl::simd {

/// Reads the first and the last byte of n elements under an address sanitizer, which does not see what masked
/// instructions read and write.
template <class Isa, class T> inline void touch([[maybe_unused]] const T* p, [[maybe_unused]] std::int64_t n) {
#ifdef HPCDL_RED_ZONES
  if (n <= 0) return;
  const auto* bytes = reinterpret_cast<const volatile unsigned char*>(p);
  static_cast<void>(bytes[0]);
  static_cast<void>(bytes[n * static_cast<std::int64_t>(sizeof(T)) - 1]);
#endif
}

template <class Isa> struct Vec;
template <class Isa> struct Mask;

// ---------------------------------------------------------------- scalar
template <> struct Mask<Scalar> {
  bool m;
};

template <> struct Vec<Scalar> {
  static constexpr int N = 1;
  float v;

  Vec() = default;
  Vec(float x) : v(x) {}
  template <class T> static Vec load(const T* p) { return static_cast<float>(*p); }
  template <class T> static Vec load(const T* p, int n, float fill = 0) {
    return n > 0 ? static_cast<float>(*p) : fill;
  }
  template <class T> void store(T* p) const { *p = T(v); }
  template <class T> void store(T* p, int n) const {
    if (n > 0) *p = T(v);
  }
  template <class T> void stream(T* p) const { *p = T(v); }
  Vec first(int n, float fill) const { return n > 0 ? v : fill; }

  friend Vec operator+(Vec a, Vec b) { return a.v + b.v; }
  friend Vec operator-(Vec a, Vec b) { return a.v - b.v; }
  friend Vec operator*(Vec a, Vec b) { return a.v * b.v; }
  friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }
  friend Mask<Scalar> operator<(Vec a, Vec b) { return {a.v < b.v}; }
  friend Mask<Scalar> operator<=(Vec a, Vec b) { return {a.v <= b.v}; }
  friend Mask<Scalar> operator>(Vec a, Vec b) { return {a.v > b.v}; }
  friend Mask<Scalar> operator==(Vec a, Vec b) { return {a.v == b.v}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return a.v * b.v + c.v; }
  // Like the machine instruction: the second operand if either is NaN.
  friend Vec max(Vec a, Vec b) { return a.v > b.v ? a.v : b.v; }
  friend Vec min(Vec a, Vec b) { return a.v < b.v ? a.v : b.v; }
  friend Vec abs(Vec a) { return std::fabs(a.v); }
  friend Vec sqrt(Vec a) { return std::sqrt(a.v); }
  friend Vec reciprocal(Vec a) { return 1.0f / a.v; }
  friend Vec round(Vec a) { return std::nearbyint(a.v); }
  friend Vec fraction(Vec a) { return std::fabs(a.v) < 0x1p23f ? a.v - std::floor(a.v) : a.v == a.v ? 0 : a.v; }
  friend Vec scale2(Vec a, Vec n) {
    return std::ldexp(a.v, n.v > -300 ? n.v < 300 ? static_cast<int>(std::floor(n.v)) : 300 : -300);
  }
  /// x = mantissa * 2^exponent with mantissa in [sqrt(1/2), sqrt(2)); x positive and finite.
  friend Vec exponent(Vec a) { return static_cast<float>(std::ilogb(a.v / 0.70710678f)); }
  friend Vec mantissa(Vec a) { return std::scalbln(a.v, -static_cast<long>(std::ilogb(a.v / 0.70710678f))); }
  friend Vec select(Mask<Scalar> m, Vec yes, Vec no) { return m.m ? yes : no; }
  friend float reduce_add(Vec a) { return a.v; }
  friend float reduce_max(Vec a) { return a.v; }
  friend float reduce_min(Vec a) { return a.v; }
};

// ---------------------------------------------------------------- AVX2
#if defined(__AVX2__) && defined(__FMA__)
template <> struct Mask<Avx2> {
  __m256 m;
};

template <> struct Vec<Avx2> {
  static constexpr int N = 8;
  __m256 v;

  Vec() = default;
  Vec(__m256 x) : v(x) {}
  Vec(float x) : v(_mm256_set1_ps(x)) {}

  static __m256i tail(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load(const bf16* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  static Vec load(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load(const float* p, int n) {
    touch<Avx2>(p, n);
    return _mm256_maskload_ps(p, tail(n));
  }
  template <class T> static Vec load(const T* p, int n) {
    T t[N] = {};
    std::memcpy(static_cast<void*>(t), p, sizeof(T) * static_cast<unsigned>(n));
    return load(t);
  }
  template <class T> static Vec load(const T* p, int n, float fill) {
    return _mm256_blendv_ps(_mm256_set1_ps(fill), load(p, n).v, _mm256_castsi256_ps(tail(n)));
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(bf16* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16()); }
  void store(f16* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16()); }
  void store(float* p, int n) const {
    touch<Avx2>(p, n);
    _mm256_maskstore_ps(p, tail(n), v);
  }
  template <class T> void store(T* p, int n) const {
    T t[N];
    store(t);
    std::memcpy(static_cast<void*>(p), t, sizeof(T) * static_cast<unsigned>(n));
  }
  void stream(float* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 32 == 0) _mm256_stream_ps(p, v);
    else store(p);
  }
  void stream(bf16* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_bf16());
    else store(p);
  }
  void stream(f16* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_f16());
    else store(p);
  }

  Vec first(int n, float fill) const { return _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(tail(n))); }

  friend Vec operator+(Vec a, Vec b) { return _mm256_add_ps(a.v, b.v); }
  friend Vec operator-(Vec a, Vec b) { return _mm256_sub_ps(a.v, b.v); }
  friend Vec operator*(Vec a, Vec b) { return _mm256_mul_ps(a.v, b.v); }
  friend Vec operator/(Vec a, Vec b) { return _mm256_div_ps(a.v, b.v); }
  friend Mask<Avx2> operator<(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
  friend Mask<Avx2> operator<=(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
  friend Mask<Avx2> operator>(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
  friend Mask<Avx2> operator==(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a.v, b.v, c.v); }
  friend Vec max(Vec a, Vec b) { return _mm256_max_ps(a.v, b.v); }
  friend Vec min(Vec a, Vec b) { return _mm256_min_ps(a.v, b.v); }
  friend Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v); }
  friend Vec sqrt(Vec a) { return _mm256_sqrt_ps(a.v); }
  friend Vec reciprocal(Vec a) { return _mm256_div_ps(_mm256_set1_ps(1), a.v); }
  friend Vec round(Vec a) { return _mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  friend Vec fraction(Vec a) {
    const __m256 c = clamp252(a.v);
    return _mm256_sub_ps(c, _mm256_floor_ps(c));
  }
  friend Vec scale2(Vec a, Vec n) {  // two factors, so that |n| up to 252 neither overflows nor loses subnormals
    const __m256i k = _mm256_cvtps_epi32(_mm256_floor_ps(clamp252(n.v)));
    const __m256i half = _mm256_srai_epi32(k, 1), rest = _mm256_sub_epi32(k, half);
    const auto pow2 = [](__m256i e) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(a.v, pow2(half)), pow2(rest));
  }
  friend Vec exponent(Vec a) {  // of a / sqrt(1/2), by integer arithmetic on the bits
    const __m256i bits = _mm256_castps_si256(_mm256_mul_ps(a.v, _mm256_set1_ps(1 / 0.70710678f)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
  }
  friend Vec mantissa(Vec a) { return scale2(a, Vec(0.0f) - exponent(a)); }
  friend Vec select(Mask<Avx2> m, Vec yes, Vec no) { return _mm256_blendv_ps(no.v, yes.v, m.m); }
  friend float reduce_add(Vec a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  friend float reduce_max(Vec a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  friend float reduce_min(Vec a) { return -reduce_max(Vec(0.0f) - a); }

 private:
  // Operand order: min and max return their second operand for NaN.
  static __m256 clamp252(__m256 x) {
    return _mm256_max_ps(_mm256_set1_ps(-252), _mm256_min_ps(_mm256_set1_ps(252), x));
  }
  __m128i to_bf16() const {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
  }
  __m128i to_f16() const { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};
#endif

// ---------------------------------------------------------------- AVX-512
#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <> struct Mask<Avx512> {
  __mmask16 m;
};

template <> struct Vec<Avx512> {
  static constexpr int N = 16;
  __m512 v;

  Vec() = default;
  Vec(__m512 x) : v(x) {}
  Vec(float x) : v(_mm512_set1_ps(x)) {}

  static __mmask16 tail(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec load(const float* p, int n) {
    touch<Avx512>(p, n);
    return _mm512_maskz_loadu_ps(tail(n), p);
  }
  static Vec load(const bf16* p, int n) {
    touch<Avx512>(p, n);
    return widen(_mm256_maskz_loadu_epi16(tail(n), p));
  }
  static Vec load(const f16* p, int n) {
    touch<Avx512>(p, n);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail(n), p));
  }
  template <class T> static Vec load(const T* p, int n, float fill) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), tail(n), load(p, n).v);
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(bf16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16()); }
  void store(f16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16()); }
  void store(float* p, int n) const {
    touch<Avx512>(p, n);
    _mm512_mask_storeu_ps(p, tail(n), v);
  }
  void store(bf16* p, int n) const {
    touch<Avx512>(p, n);
    _mm256_mask_storeu_epi16(p, tail(n), to_bf16());
  }
  void store(f16* p, int n) const {
    touch<Avx512>(p, n);
    _mm256_mask_storeu_epi16(p, tail(n), to_f16());
  }
  void stream(float* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 64 == 0) _mm512_stream_ps(p, v);
    else store(p);
  }
  void stream(bf16* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 32 == 0) _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16());
    else store(p);
  }
  void stream(f16* p) const {
    if (reinterpret_cast<std::uintptr_t>(p) % 32 == 0) _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_f16());
    else store(p);
  }

  Vec first(int n, float fill) const { return _mm512_mask_mov_ps(_mm512_set1_ps(fill), tail(n), v); }

  friend Vec operator+(Vec a, Vec b) { return _mm512_add_ps(a.v, b.v); }
  friend Vec operator-(Vec a, Vec b) { return _mm512_sub_ps(a.v, b.v); }
  friend Vec operator*(Vec a, Vec b) { return _mm512_mul_ps(a.v, b.v); }
  friend Vec operator/(Vec a, Vec b) { return _mm512_div_ps(a.v, b.v); }
  friend Mask<Avx512> operator<(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
  friend Mask<Avx512> operator<=(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
  friend Mask<Avx512> operator>(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
  friend Mask<Avx512> operator==(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a.v, b.v, c.v); }
  friend Vec max(Vec a, Vec b) { return _mm512_max_ps(a.v, b.v); }
  friend Vec min(Vec a, Vec b) { return _mm512_min_ps(a.v, b.v); }
  friend Vec abs(Vec a) { return _mm512_abs_ps(a.v); }
  friend Vec sqrt(Vec a) { return _mm512_sqrt_ps(a.v); }
  friend Vec reciprocal(Vec a) {  // 14 bits, then one Newton step
    const __m512 y = _mm512_rcp14_ps(a.v);
    return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(a.v, y, _mm512_set1_ps(1)), y);
  }
  friend Vec round(Vec a) { return _mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  friend Vec fraction(Vec a) { return _mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  friend Vec scale2(Vec a, Vec n) { return _mm512_scalef_ps(a.v, n.v); }
  friend Vec exponent(Vec a) { return _mm512_getexp_ps(_mm512_mul_ps(a.v, _mm512_set1_ps(1 / 0.70710678f))); }
  friend Vec mantissa(Vec a) { return scale2(a, Vec(0.0f) - exponent(a)); }
  friend Vec select(Mask<Avx512> m, Vec yes, Vec no) { return _mm512_mask_mov_ps(no.v, m.m, yes.v); }
  friend float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
  friend float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
  friend float reduce_min(Vec a) { return _mm512_reduce_min_ps(a.v); }

 private:
  /// One shuffle that puts zeros below every half; widening and shifting would be two instructions.
  static __m512 widen(__m256i h) {
    const __m512i to = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3,
                                        0, 2, 0, 1, 0, 0, 0);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, to, _mm512_castsi256_si512(h)));
  }
  // vcvtneps2bf16 flushes subnormal inputs; they are below the smallest normal float, so the loss is < 1.2e-38.
  __m256i to_bf16() const { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
  __m256i to_f16() const { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};
#endif

// The set for which this translation unit is compiled.
#if defined(HPCDL_SIMD_AVX512)
using Isa = Avx512;
#elif defined(HPCDL_SIMD_AVX2)
using Isa = Avx2;
#else
using Isa = Scalar;
#endif

}  // namespace hpcdl::simd
