#pragma once
// A root without the divider, where a few bits are enough and the divider has other work.

#include <bit>
#include <cstdint>

#include "hpcdl/simd/vec.h"

namespace hpcdl::simd {

namespace detail {
/// About 1 / the root: half of the exponent with the other sign, and a fraction that suits most numbers.
constexpr std::uint32_t kInverseRoot = 0x5f375a86u;

inline Vec<Scalar> guess_inverse_root(Vec<Scalar> x) {
  return std::bit_cast<float>(kInverseRoot - (std::bit_cast<std::uint32_t>(x.v) >> 1));
}
#if defined(__AVX2__) && defined(__FMA__)
inline Vec<Avx2> guess_inverse_root(Vec<Avx2> x) {
  return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(static_cast<int>(kInverseRoot)),
                                              _mm256_srli_epi32(_mm256_castps_si256(x.v), 1)));
}
#endif
#if defined(__AVX512F__) && defined(__AVX512BF16__)
inline Vec<Avx512> guess_inverse_root(Vec<Avx512> x) {
  return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(static_cast<int>(kInverseRoot)),
                                              _mm512_srli_epi32(_mm512_castps_si512(x.v), 1)));
}
#endif
}  // namespace detail

/// The root of x with a relative error below 6e-6, for 0 and 2^-125 <= x <= 2^125; any number for others. The same bits on
/// every CPU with the instruction set, as instructions that estimate roots do not have. Two steps of Newton's method.
template <class V> inline V rough_root(V x) {
  const V half = V(0.5f) * x;
  V y = detail::guess_inverse_root(x);
  for (int i = 0; i < 2; ++i) y = y * (V(1.5f) - half * y * y);
  return x * y;
}

}  // namespace hpcdl::simd
