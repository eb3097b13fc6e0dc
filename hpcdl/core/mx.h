#pragma once
// Numbers of the Open Compute Project's Microscaling Formats 1.0: E2M1 elements and E8M0 scales. Always inlined: objects
// of several instruction sets may share no symbol (tests/symbols).

#include <bit>
#include <cstdint>

namespace hpcdl {

/// The values of E2M1 by code: a sign, two bits of exponent, one of fraction.
constexpr float kE2m1Values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr float kLargestE2m1 = 6;
constexpr int kMxBlock = 32;  // elements with one scale

/// The code of the nearest value, ties to even codes; what is beyond the largest value becomes that value. NaN has no
/// code: it becomes 0.
[[gnu::always_inline]] constexpr std::uint8_t to_e2m1(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const float v = std::bit_cast<float>(bits & 0x7fffffffu);
  const int sign = bits >> 31 ? 8 : 0;
  // Thresholds between neighbours; a tie goes to the even one of the two codes.
  const int code = (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + (v > 2.5f) + (v >= 3.5f) + (v > 5.0f);
  return static_cast<std::uint8_t>(code > 0 ? sign | code : v == v ? sign : 0);
}

/// 2^(code - 127), also where that is subnormal; NaN for 255.
[[gnu::always_inline]] constexpr float from_e8m0(std::uint8_t code) {
  const std::uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : std::uint32_t{code} << 23;
  return std::bit_cast<float>(bits);
}

/// The scale of elements whose largest magnitude is `largest`, which is finite: the power of two that puts it between 4
/// and 8, so that at most values above 7 lose more than half a step. 0, and the smallest numbers, have the smallest scale.
[[gnu::always_inline]] constexpr std::uint8_t e8m0_scale(float largest) {
  const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(largest) >> 23 & 255u);
  return static_cast<std::uint8_t>(exponent > 2 ? exponent - 2 : 0);
}

}  // namespace hpcdl
