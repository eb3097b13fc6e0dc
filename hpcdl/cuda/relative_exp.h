#pragma once
// The terms of softmax and log-sum-exp (.cu files).

namespace hpcdl::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

/// e^(x - top), top the largest value so far. Where all is -inf so far, NaN alone counts.
__device__ inline float relative_exp(float x, float top) {
  if (top == -__builtin_inff()) return x == top ? 0.0f : x;
  return exp2f((x - top) * kLog2e);
}

}  // namespace hpcdl::cuda
