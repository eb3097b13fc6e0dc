#pragma once
// The functions that functors call, for a plain float (a CUDA thread's value). For simd::Vec, argument-dependent lookup
// finds the same names in simd/, so one functor serves both.

#include <math.h>

#include "hpcdl/core/device_macros.h"

namespace hpcdl::fuse {

HPCDL_HOST_DEVICE inline float exp(float x) { return ::expf(x); }
HPCDL_HOST_DEVICE inline float log(float x) { return ::logf(x); }
HPCDL_HOST_DEVICE inline float tanh(float x) { return ::tanhf(x); }
HPCDL_HOST_DEVICE inline float erf(float x) { return ::erff(x); }
HPCDL_HOST_DEVICE inline float sqrt(float x) { return ::sqrtf(x); }
HPCDL_HOST_DEVICE inline float abs(float x) { return ::fabsf(x); }
HPCDL_HOST_DEVICE inline float logistic2(float x) { return 1.0f / (1.0f + ::exp2f(-x)); }
HPCDL_HOST_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
HPCDL_HOST_DEVICE inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
HPCDL_HOST_DEVICE inline float max(float a, float b) { return a > b ? a : b; }
HPCDL_HOST_DEVICE inline float min(float a, float b) { return a < b ? a : b; }
HPCDL_HOST_DEVICE inline float select(bool m, float yes, float no) { return m ? yes : no; }

/// Phi(x), the normal distribution function, and e^(-x^2 / 2).
template <class V> HPCDL_HOST_DEVICE V normal_cdf(V x) {
  return V(0.5f) * (V(1.0f) + erf(x * V(0.70710678118654752f)));
}
template <class V> HPCDL_HOST_DEVICE V bell(V x) { return exp(V(-0.5f) * x * x); }

}  // namespace hpcdl::fuse
