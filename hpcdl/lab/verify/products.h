#pragma once
// What the references of products share.

#include <cmath>

#include "hpcdl/lab/verify/kernel_abi.h"

namespace hpcdl::lab::verify::detail {

/// A sum and the magnitudes behind it.
struct Sum {
  double value = 0, scale = 0;
  void add(double x) { value += x, scale += std::fabs(x); }
};

inline double activated(int kind, double z) {
  switch (kind) {
    case HPCDL_ACT_RELU: return z > 0 || std::isnan(z) ? z : 0;
    case HPCDL_ACT_GELU_TANH: return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case HPCDL_ACT_GELU_ERF: return 0.5 * z * (1 + std::erf(z * M_SQRT1_2));
    case HPCDL_ACT_SILU: return z / (1 + std::exp(-z));
    default: return z;
  }
}

inline double slope(int kind, double z) {
  switch (kind) {
    case HPCDL_ACT_RELU: return z > 0 ? 1 : 0;
    case HPCDL_ACT_GELU_TANH: {
      const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (z + 0.044715 * z * z * z));
      return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * c * (1 + 3 * 0.044715 * z * z);
    }
    case HPCDL_ACT_GELU_ERF:
      return 0.5 * (1 + std::erf(z * M_SQRT1_2)) + z * std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI);
    default: return 1;
  }
}

}  // namespace hpcdl::lab::verify::detail
