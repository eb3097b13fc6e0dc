#pragma once
// Checks shared by infer() functions. Not for kernels, which run on operands that infer() has accepted.

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl {

/// f32, bf16 or f16 with at least one dimension.
inline const Spec& require_float(std::string_view op, const Spec& x, std::string_view operand = "input") {
  require(x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16, op,
          "{} must be F32, BF16 or F16, got {}", operand, to_string(x));
  require(x.shape.rank() >= 1, op, "{} needs at least one dimension, got {}", operand, to_string(x));
  return x;
}

inline void require_spec(std::string_view op, std::string_view operand, const Spec& got, const Spec& want) {
  require(got == want, op, "{} must be {}, got {}", operand, to_string(want), to_string(got));
}

inline void require_shape(std::string_view op, std::string_view operand, const Spec& got, const Shape& want) {
  require(got.shape == want, op, "{} must have shape {}, got {}", operand, to_string(want), to_string(got));
}

}  // namespace hpcdl
