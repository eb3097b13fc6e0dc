#pragma once
// The error that a correct kernel may have: derived, never chosen.

#include <cmath>

#include "hpcdl/dtype.h"

namespace hpcdl {

/// Half a unit in the last place of 1.
constexpr double half_ulp(DType d) { return d == DType::bf16 ? 0x1p-8 : d == DType::f16 ? 0x1p-11 : 0x1p-24; }

/// Allowed error of a result that is rounded to `stored` at magnitude `magnitude`, after a sum of `reduction` terms
/// whose magnitudes sum to `scale`. A sum of L terms rounds L times, and independent roundings grow like a random walk
/// (Higham, "Accuracy and stability of numerical algorithms", section 2.8); 4 covers elementary functions, which are
/// within 4 ulp.
inline double allowed_error(DType stored, double magnitude, double reduction, double scale) {
  return 2 * half_ulp(stored) * magnitude + (4 + std::sqrt(reduction)) * 0x1p-24 * scale;
}

}  // namespace hpcdl
