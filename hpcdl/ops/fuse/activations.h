#pragma once
// Activation functions with their derivatives, on any value type: float or simd::Vec.

#include "hpcdl/ops/fuse/math.h"

namespace hpcdl::fuse {

/// Beyond this, activations equal 0 or x to the last bit of an f32; their gates have a minimum that a large x would
/// make visible.
inline constexpr float kSaturated = 128;

/// x * gate, or 0 where x is far below 0.
template <class V> HPCDL_HOST_DEVICE V gated(V x, V gate) { return select(V(-kSaturated) > x, V(-0.0f), x * gate); }

struct Relu {
  template <class V> HPCDL_HOST_DEVICE static V value(V x) { return max(V(0.0f), x); }  // this order preserves NaN
  template <class V> HPCDL_HOST_DEVICE static V slope(V x) { return select(x > V(0.0f), V(1.0f), V(0.0f)); }
};

/// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), expressed with exp: x / (1 + e^-2u).
struct GeluTanh {
  static constexpr float kTwoC = 1.5957691216057308f;  // 2 sqrt(2/pi)
  static constexpr float kLog2e = 1.4426950408889634f;
  template <class V> HPCDL_HOST_DEVICE static V gate(V x) {
    return logistic2(x * fma(V(kTwoC * kLog2e * 0.044715f) * x, x, V(kTwoC * kLog2e)));
  }
  template <class V> HPCDL_HOST_DEVICE static V value(V x) { return gated(x, gate(x)); }
  template <class V> HPCDL_HOST_DEVICE static V slope(V x) {
    const V s = gate(x);
    const V near = max(V(-kSaturated), min(V(kSaturated), x));  // otherwise x^2 could overflow, and 0 times that is NaN
    const V du2 = V(kTwoC) * fma(V(3 * 0.044715f) * near, near, V(1.0f));
    return fma(s * (V(1.0f) - s) * near, du2, s);
  }
};

/// 0.5 x (1 + erf(x / sqrt 2)) = x Phi(x).
struct GeluErf {
  template <class V> HPCDL_HOST_DEVICE static V value(V x) { return x * normal_cdf(x); }
  template <class V> HPCDL_HOST_DEVICE static V slope(V x) {
    return fma(x * V(0.39894228040143268f), bell(x), normal_cdf(x));
  }
};

struct Silu {
  template <class V> HPCDL_HOST_DEVICE static V value(V x) { return gated(x, sigmoid(x)); }
  template <class V> HPCDL_HOST_DEVICE static V slope(V x) {
    const V s = sigmoid(x);
    return s * fma(max(V(-kSaturated), x), V(1.0f) - s, V(1.0f));
  }
};

}  // namespace hpcdl::fuse
