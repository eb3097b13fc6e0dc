#pragma once
// How a row of a head becomes 8-bit codes and a scale, on the host and in CUDA kernels, with the same bits: the scale is
// the row's largest magnitude over the largest code, a code is the nearest to element / scale, ties to even. A row with
// an element that is not finite has the scale NaN, so that it spoils the results as it would unrounded.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/core/f8.h"

namespace hpcdl {

template <class K> inline constexpr float kLargestCode = std::is_same_v<K, std::int8_t> ? 127.0f : kLargestF8<f8_e4m3>;

/// The bits of |x|, which are ordered like magnitudes; those of NaN are the largest.
[[gnu::always_inline]] HPCDL_HOST_DEVICE constexpr std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

/// The scale of a row, given the largest of its magnitude_bits(). Never 0, and its inverse is finite.
template <class K> [[gnu::always_inline]] HPCDL_HOST_DEVICE inline float row_scale(std::uint32_t largest) {
  if (largest == 0) return 1;
  if (largest >= 0x7f800000u) return std::bit_cast<float>(0x7fc00000u);
  const auto amax = std::bit_cast<float>(largest);
  return (amax < 0x1p-100f ? 0x1p-100f : amax) / kLargestCode<K>;
}

/// The code of x, given 1 / scale.
template <class K> [[gnu::always_inline]] HPCDL_HOST_DEVICE inline K code_of(float x, float inverse) {
  if constexpr (std::is_same_v<K, std::int8_t>) {
    // The sum's lowest bits are the product, rounded once.
    return static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(::fmaf(x, inverse, 0x1.8p23f)));
  } else {
    return to_f8<K>(x * inverse);
  }
}

}  // namespace hpcdl
