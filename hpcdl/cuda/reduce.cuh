#pragma once
// Sums and maxima over a warp or a block, in an order that depends only on the shape, so that results repeat bit for
// bit.

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

struct Sum {
  static constexpr float start = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  static constexpr float start = -__builtin_inff();
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

/// Over kThreads neighbours of a warp, a power of two; all get the result.
template <int kThreads = kWarp, class Op> __device__ float warp_reduce(float x, Op op) {
#pragma unroll
  for (int offset = kThreads / 2; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

/// Every thread gets the result. kThreads is blockDim.x, a multiple of 32; `memory` holds kThreads / 32 floats. Calls
/// with the same memory must be a __syncthreads() apart.
template <int kThreads, class Op> __device__ float block_reduce(float x, Op op, float* memory) {
  static_assert(kThreads % kWarp == 0);
  constexpr int kWarps = kThreads / kWarp;
  x = warp_reduce(x, op);
  if constexpr (kWarps == 1) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) memory[warp] = x;
  __syncthreads();
  return warp_reduce(lane < kWarps ? memory[lane] : Op::start, op);
}

}  // namespace hpcdl::cuda
