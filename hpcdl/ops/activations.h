#pragma once
// Activations and their derivatives in double precision, for naive references; also callable on a GPU.

#include <cmath>

#include "hpcdl/core/device_macros.h"

namespace hpcdl::contract {

/// Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), section 2: x times the normal distribution, and its tanh
/// form.
HPCDL_HOST_DEVICE inline double gelu_erf(double x) { return 0.5 * x * (1 + std::erf(x * M_SQRT1_2)); }
HPCDL_HOST_DEVICE inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
HPCDL_HOST_DEVICE inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
HPCDL_HOST_DEVICE inline double silu(double x) { return x * sigmoid(x); }
HPCDL_HOST_DEVICE inline double relu(double x) { return x > 0 || std::isnan(x) ? x : 0; }

HPCDL_HOST_DEVICE inline double gelu_erf_slope(double x) {
  return 0.5 * (1 + std::erf(x * M_SQRT1_2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}
HPCDL_HOST_DEVICE inline double gelu_tanh_slope(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
  const double du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + (std::fabs(t) < 1 ? 0.5 * x * (1 - t * t) * du : 0);
}

/// For any enum with values none, relu, gelu_tanh and gelu_erf.
template <class Activation> HPCDL_HOST_DEVICE double activated(Activation a, double x) {
  if (a == Activation::relu) return relu(x);
  if (a == Activation::gelu_tanh) return gelu_tanh(x);
  if (a == Activation::gelu_erf) return gelu_erf(x);
  return x;
}
template <class Activation> HPCDL_HOST_DEVICE double slope(Activation a, double x) {
  if (a == Activation::relu) return x > 0 ? 1 : 0;
  if (a == Activation::gelu_tanh) return gelu_tanh_slope(x);
  if (a == Activation::gelu_erf) return gelu_erf_slope(x);
  return 1;
}

}  // namespace hpcdl::contract
