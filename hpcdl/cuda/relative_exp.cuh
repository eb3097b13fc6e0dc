#pragma once
// The terms of softmax and log-sum-exp (.cu files).

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/reduce.cuh"

namespace hpcdl::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

/// What to subtract from values whose largest is `top`: if all are -inf so far, 0 makes all terms 0 instead of
/// NaN.
__device__ inline float finite(float top) { return top == -__builtin_inff() ? 0.0f : top; }

/// e^(x - top), top the largest value so far. If all are -inf so far, only NaN matters.
__device__ inline float relative_exp(float x, float top) { return fast_exp2((x - finite(top)) * kLog2e); }

/// The sum of e^x over values that come in packs, relative to the largest of them: sum * e^top. Any NaN makes the
/// sum NaN.
struct SumOfExp {
  float top = -__builtin_inff(), sum = 0;

  template <class T, int N, int K> __device__ void add(const Pack<T, N> (&v)[K]) {
    float higher = top;
#pragma unroll
    for (int k = 0; k < K; ++k) higher = fmaxf(higher, largest(v[k]));
    const float shift = finite(higher);
    float more = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
      more += cuda::sum(map<N>([&, x = widen(v[k])](int i) { return fast_exp2((x.v[i] - shift) * kLog2e); }));
    sum = relative_to(shift) + more;
    top = higher;
  }
  /// The sum for another top, not below this one unless all values are -inf.
  __device__ float relative_to(float other) const {
    return top == -__builtin_inff() ? sum : sum * exp2f((top - other) * kLog2e);
  }
  /// The sum over the block; every thread gets it. `memory`: two times 32 floats.
  template <int kThreads> __device__ void over_block(float (*memory)[kWarp]) {
    const float all = block_reduce<kThreads>(top, Max{}, memory[0]);
    sum = block_reduce<kThreads>(relative_to(finite(all)), Sum{}, memory[1]);
    top = all;
  }
};

}  // namespace hpcdl::cuda
