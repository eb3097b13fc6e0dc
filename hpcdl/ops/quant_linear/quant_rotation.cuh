#pragma once
// The rotation (rotation.h) on GPUs: a warp has a block of 256 numbers, 8 in each lane. The Hadamard matrix is a product
// over the bits of an input's number, so it does not matter which bits tell the lane and which the place in it.

#include <array>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/quant_linear/rotation.h"

namespace hpcdl::cuda {

/// v = H v.
__device__ inline void hadamard(float (&v)[8]) {
#pragma unroll
  for (unsigned apart = kWarp / 2; apart > 0; apart /= 2) {
    const bool upper = threadIdx.x & apart;
#pragma unroll
    for (float& x : v) {
      const float other = __shfl_xor_sync(~0u, x, apart);
      x = upper ? other - x : x + other;
    }
  }
#pragma unroll
  for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if ((i & apart) == 0) {
        const float a = v[i], b = v[i + apart];
        v[i] = a + b, v[i + apart] = a - b;
      }
}

/// Multiplies v by `factor`, or by -factor where the sign of an input is -1; v[0 ... 3] and v[4 ... 7] are runs of inputs
/// that begin at `first` and `second`.
__device__ inline void apply_signs(float (&v)[8], unsigned first, unsigned second, float factor) {
  static constexpr auto kSigns = std::to_array(kRotationSigns);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const unsigned begin = (run == 0 ? first : second) % kRotated;
    const auto flips = static_cast<unsigned>(kSigns[begin / 64] >> (begin % 64));
#pragma unroll
    for (int i = 0; i < 4; ++i) v[4 * run + i] *= flips >> i & 1 ? -factor : factor;
  }
}

}  // namespace hpcdl::cuda
