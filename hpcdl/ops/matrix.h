#pragma once
// The weights of a linear layer, dense or INT4, as operands of ops that contain several layers.

#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/linear/linear.h"

namespace hpcdl {

/// Dense: w (N, K) of a float type. INT4 (int4_layout.h): w is the packed weights, with scale and perhaps offset. bias
/// (N) may be absent. T: View or Spec.
template <class T> struct Matrix {
  T w, scale, offset, bias;
  bool quantized() const { return static_cast<bool>(scale); }
};

/// Checks the operands; returns the spec of x W^T + bias.
inline Spec matrix_spec(std::string_view op, const Spec& x, const Matrix<Spec>& m) {
  if (!m.quantized()) return linear_spec(op, x, m.w, m.bias, {}, {});
  return Int4Linear::infer(x, m.w, m.scale, m.offset, m.bias, {}, {});
}

inline Cost matrix_cost(const Spec& x, const Matrix<Spec>& m) {
  if (m.quantized()) return Int4Linear::cost(x, m.w, m.scale, m.offset, m.bias, {}, {});
  Cost c = linear_cost(x, m.w, m.bias, {}, false);
  c.unit = unit_of(x.dtype);
  return c;
}

/// y = x W^T + bias by the kernels of Linear or Int4Linear. `constant`: no kernel writes the weights.
inline void multiply(Stream& s, const Tensor& y, const View& x, const Matrix<View>& m, const int4::Scratch& scratch,
                     bool constant) {
  if (!m.quantized()) return Linear::forward(s, y, x, m.w, m.bias, {}, {.constant_weights = constant});
  Int4Linear::forward(s, y, x, m.w, m.scale, m.offset, m.bias, {}, scratch.values, scratch.steps, scratch.sums,
                      {.constant_weights = constant});
}

}  // namespace hpcdl
