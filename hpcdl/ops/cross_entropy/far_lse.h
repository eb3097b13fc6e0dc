#pragma once
// A log-sum-exp is the maximum of a row plus the logarithm of a sum, and rounding their sum loses digits of the
// logarithm: probabilities exp(x - lse) have an error of half an ulp of lse, 2.4e-4 at 2^12, and at 2^28 nothing is
// left of the logarithm. Rows beyond, as masks of -1e10 and the lowest float produce them, use both separately:
//   exp((x - base) - rest), with base + rest = maximum + logarithm
// Ordinary rows have a rest of 0.

#include "hpcdl/core/device_macros.h"

namespace hpcdl {

inline constexpr float kFarLse = 4096;

/// False for infinities and NaN, which have no digits to lose.
[[gnu::always_inline]] HPCDL_HOST_DEVICE inline bool is_far_lse(float lse) {
  const float size = lse < 0 ? -lse : lse;
  return size > kFarLse && size <= __FLT_MAX__;
}

/// What rounding top + log_sum loses.
[[gnu::always_inline]] HPCDL_HOST_DEVICE inline float lse_rest(float top, float log_sum) {
  const float lse = top + log_sum;
  return is_far_lse(lse) ? log_sum - (lse - top) : 0.0f;
}

}  // namespace hpcdl
