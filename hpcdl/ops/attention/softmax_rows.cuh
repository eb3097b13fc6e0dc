#pragma once
// The online softmax on a wgmma accumulator (.cu files): a thread holds parts of two rows, `row` and `row` + 8, of
// which four neighbouring threads hold the rest. Scores are kept unscaled; exponents are taken to base 2 with the scale
// folded in.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/tile/leave.cuh"
#include "hpcdl/cuda/wgmma.cuh"

namespace hpcdl::cuda {

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Exponents scale * score - scale * top are as exact as scale * top: for ordinary masks of -1e10 they are wrong by
/// hundreds. Beyond this limit they are computed from score - top.
inline constexpr float kFarExponent = 256;
__device__ inline bool is_far(float exponent) { return !(::fabsf(exponent) <= kFarExponent); }

/// scale * (top - other), as exact as exponents relative to either.
__device__ inline float exponent_between(float top, float other, float scale) {
  const float a = __fmul_rn(top, scale), b = __fmul_rn(other, scale);
  return is_far(a) || is_far(b) ? (top - other) * scale : a - b;
}

/// The online softmax of one query, whose scores several threads hold.
struct OnlineSoftmax {
  float top = -__builtin_inff();
  float sum = 0;  // this thread's part

  /// s -> 2^(scale (s - top)), where the largest score of all threads is `largest`. Returns the factor by which earlier
  /// sums must shrink.
  template <int kCount> __device__ float update(float (&s)[kCount], float largest, float scale) {
    const float here = fmaxf(top, largest);
    float base = here == -__builtin_inff() ? 0.0f : here * scale;  // a query that has not seen any key yet stays empty
    float fall = ::fmaf(top, scale, -base);
    if (is_far(base)) {
#pragma unroll
      for (float& x : s) x -= here;
      fall = (top - here) * scale, base = 0;
    }
    const float shrink = exp2_fast(fall);
    top = here;
    float part = 0;
#pragma unroll
    for (float& x : s) {
      x = exp2_fast(::fmaf(x, scale, -base));
      part += x;
    }
    sum = sum * shrink + part;
    return shrink;
  }
};

/// Of the two rows of a thread.
struct RowSoftmax {
  OnlineSoftmax row[2];

  /// s -> 2^(scale (s - top)); returns in `shrink` the factors by which earlier sums must shrink.
  template <int kCount> __device__ void update(float (&s)[kCount], float scale, float (&shrink)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x[kCount / 2], largest = -__builtin_inff();
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) x[j] = s[j / 2 * 4 + 2 * h + j % 2], largest = fmaxf(largest, x[j]);
      shrink[h] = row[h].update(x, quad_max(largest), scale);
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) s[j / 2 * 4 + 2 * h + j % 2] = x[j];
    }
  }
};

/// Accumulator columns 16 c .. 16 c + 15 as an A operand.
template <class T, int kCount> __device__ void pack_operand(unsigned (&a)[kCount / 8][4], const float (&s)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount / 8; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[c][i] = pack_pair<T>(s[8 * c + 2 * i], s[8 * c + 2 * i + 1]);
}

}  // namespace hpcdl::cuda
