#pragma once
// What the kernels of softmax share (.cu files): the operands of forward, the exponential.

#include "hpcdl/cuda/relative_exp.h"

namespace hpcdl::cuda {

inline constexpr float kInf = __builtin_inff();

/// Columns that a row sees.
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

/// e^(|scale| (x - top)) of elements that negate() has turned to rise with the result, top the largest of them.
struct SoftmaxExponent {
  float factor;
  unsigned sign;
  template <class T> __device__ static SoftmaxExponent of(float scale) {
    // 0 would make 0 * inf of an absent element.
    return {fmaxf(fabsf(scale) * kLog2e, 1e-37f), scale < 0 ? (sizeof(T) == 4 ? 0x80000000u : 0x80008000u) : 0u};
  }
  template <class P> __device__ void negate(P& p) const {
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) p.w[i] ^= sign;
  }
  /// Of what is relative to `top`, to make it relative to `other`, not below it; the sum of nothing but -inf stays as
  /// it is.
  __device__ float between(float top, float other) const { return top == -kInf ? 1.0f : exp2f((top - other) * factor); }
  template <int N> __device__ Lanes<N> operator()(const Lanes<N>& x, float top) const {
    return map<N>([&](int i) { return fast_exp2((x.v[i] - top) * factor); });
  }
};

/// What a causal row does not see is 0, even where the row is NaN: 0 of the term times a NaN of the sum is none.
template <class T, int N> __device__ void hide(Pack<T, N>& v, int seen) {
  if (seen >= N) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= seen) v.set(i, narrow<T>(0.0f));
}

}  // namespace hpcdl::cuda
