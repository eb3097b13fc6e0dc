#pragma once
// 8-bit floats as numbers (dtype.h), on the host and in CUDA kernels, with the same bits. Always inlined: objects of
// several instruction sets may share no symbol (tests/symbols).

#include <bit>
#include <cstdint>
#include <type_traits>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/dtype.h"

namespace hpcdl {

template <class F> inline constexpr bool is_f8 = std::is_same_v<F, f8_e4m3> || std::is_same_v<F, f8_e5m2>;
constexpr bool is_f8_dtype(DType d) { return d == DType::f8_e4m3 || d == DType::f8_e5m2; }

/// The largest finite number.
template <class F> inline constexpr float kLargestF8 = std::is_same_v<F, f8_e4m3> ? 448.0f : 57344.0f;

/// Rounds to nearest, ties to even. What exceeds the largest finite number becomes that number, also infinities, as
/// training needs it: a gradient that overflows stays finite. NaN stays NaN, of code 0x7f.
template <class F> [[gnu::always_inline]] HPCDL_HOST_DEVICE inline F to_f8(float x) {
  static_assert(is_f8<F>);
  F r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t two;
  if constexpr (std::is_same_v<F, f8_e4m3>)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  r.bits = static_cast<std::uint8_t>(two);
#else
  constexpr bool kE4m3 = std::is_same_v<F, f8_e4m3>;
  constexpr int kShift = kE4m3 ? 20 : 21;                         // mantissa bits of f32 that are rounded off
  constexpr std::uint32_t kRebias = (kE4m3 ? 120u : 112u) << 23;  // the difference of the exponents' biases
  constexpr std::uint32_t kNormal = (kE4m3 ? 121u : 113u) << 23;  // the smallest normal number
  constexpr std::uint32_t kLargest = kE4m3 ? 0x7eu : 0x7bu;
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
  std::uint32_t code;
  if (mag > 0x7f800000u) return F{0x7f};
  if (mag >= (kLargest << kShift) + kRebias) code = kLargest;
  else if (mag < kNormal) {  // let the float adder round at the subnormals' step
    constexpr float kOffset = kE4m3 ? 0x1p14f : 0x1p7f;
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(mag) + kOffset) - std::bit_cast<std::uint32_t>(kOffset);
  } else {
    code = (mag - kRebias + (1u << (kShift - 1)) - 1 + ((mag >> kShift) & 1u)) >> kShift;
  }
  r.bits = static_cast<std::uint8_t>(sign | code);
#endif
  return r;
}

/// The number, exactly.
template <class F> [[gnu::always_inline]] HPCDL_HOST_DEVICE constexpr float from_f8(F x) {
  static_assert(is_f8<F>);
  constexpr bool kE4m3 = std::is_same_v<F, f8_e4m3>;
  constexpr int kShift = kE4m3 ? 20 : 21;
  const std::uint32_t sign = std::uint32_t(x.bits & 0x80u) << 24, mag = x.bits & 0x7fu;
  if (kE4m3 ? mag == 0x7f : mag >= 0x7c)
    return std::bit_cast<float>(sign | (kE4m3 || mag > 0x7c ? 0x7fc00000u : 0x7f800000u));
  if (mag < (kE4m3 ? 8u : 4u)) {
    const float small = static_cast<float>(mag) * (kE4m3 ? 0x1p-9f : 0x1p-16f);
    return sign ? -small : small;
  }
  return std::bit_cast<float>(sign | ((mag << kShift) + ((kE4m3 ? 120u : 112u) << 23)));
}

/// f.template operator()<F>() with the type of an 8-bit float.
template <class Fn> decltype(auto) visit_f8(DType d, Fn&& f) {
  if (d == DType::f8_e5m2) return f.template operator()<f8_e5m2>();
  return f.template operator()<f8_e4m3>();
}

/// The factor that leads from 8-bit numbers of type F back to those that they stand for, given the largest magnitude
/// `amax` of the latter: amax / kLargestF8. For amax = 0 it is 1, so that nothing is divided by 0; amax is taken as at
/// least 2^-100 otherwise, so that the inverse is finite, and as at most the largest float.
template <class F> [[gnu::always_inline]] HPCDL_HOST_DEVICE inline float f8_scale(float amax) {
  if (amax == 0) return 1;
  amax = amax < 0x1p-100f ? 0x1p-100f : amax > 0x1.fffffep127f ? 0x1.fffffep127f : amax;
  return amax / kLargestF8<F>;
}

}  // namespace hpcdl
