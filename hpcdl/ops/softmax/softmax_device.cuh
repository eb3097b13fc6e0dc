#pragma once
// Shared code of the softmax kernels (.cu files): the operands of forward, the exponential.

#include "hpcdl/cuda/relative_exp.cuh"

namespace hpcdl::cuda {

inline constexpr float kInf = __builtin_inff();

/// The number of columns that a row sees.
__device__ inline std::int64_t columns_seen(std::int64_t row, std::int64_t cols, std::int64_t period) {
  return period == 0 ? cols : row % period + cols - period + 1;
}

struct SoftmaxProblem {
  void* y;
  const void* x;
  std::int64_t rows, cols, y_stride, x_stride;
  std::int64_t period;  // rows of one causal square; 0: every row sees all columns
  float scale;
  __device__ std::int64_t seen(std::int64_t row) const { return columns_seen(row, cols, period); }
};

/// e^(|scale| (x - top)) for elements that negate() has made increase with the result; top is the largest of them.
struct SoftmaxExponent {
  float factor;
  unsigned sign;
  template <class T> __device__ static SoftmaxExponent of(float scale) {
    // A rate of 0 would give 0 * inf for an absent element.
    return {fmaxf(fabsf(scale) * kLog2e, 1e-37f), scale < 0 ? (sizeof(T) == 4 ? 0x80000000u : 0x80008000u) : 0u};
  }
  template <class P> __device__ void negate(P& p) const {
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) p.w[i] ^= sign;
  }
  /// The factor that makes values relative to `top` relative to `other`, which is not smaller; a sum of only -inf stays
  /// unchanged.
  __device__ float between(float top, float other) const { return top == -kInf ? 1.0f : exp2f((top - other) * factor); }
  template <int N> __device__ Lanes<N> operator()(const Lanes<N>& x, float top) const {
    return map<N>([&](int i) { return fast_exp2((x.v[i] - top) * factor); });
  }
};

/// Columns that a causal row does not see are 0, even if the row is NaN: a zero term times a NaN sum would be NaN.
template <class T, int N> __device__ void hide(Pack<T, N>& v, int seen) {
  if (seen >= N) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= seen) v.set(i, narrow<T>(0.0f));
}

}  // namespace hpcdl::cuda
