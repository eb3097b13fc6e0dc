#pragma once
// Activations in double precision, for naive references.

#include <algorithm>
#include <cmath>

namespace hpcdl::testing {

/// Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), section 2: x times the normal distribution, and its tanh
/// form.
inline double gelu_erf(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double silu(double x) { return x / (1 + std::exp(-x)); }

/// For an enum with none, relu, gelu_tanh and gelu_erf.
template <class Activation> double activated(Activation a, double x) {
  if (a == Activation::relu) return std::max(x, 0.0);
  if (a == Activation::gelu_tanh) return gelu_tanh(x);
  if (a == Activation::gelu_erf) return gelu_erf(x);
  return x;
}

}  // namespace hpcdl::testing
