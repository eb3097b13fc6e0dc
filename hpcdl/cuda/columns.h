#pragma once
// Sums over the rows of a matrix, per column, for gradients of biases and norms: shares of rows go to blocks, each thread
// owns some columns, and shares are added in order, so that results repeat bit for bit.

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

inline constexpr int kColumnThreads = kWarp, kRowThreads = 8;

/// The sum of `mine` over the threads of one column (threadIdx.y), valid in threads with threadIdx.y == 0. All threads of the
/// block must call.
template <int N> __device__ Lanes<N> sum_over_row_threads(const Lanes<N>& mine) {
  __shared__ float memory[kRowThreads][kColumnThreads][N + 1];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) memory[threadIdx.y][threadIdx.x][i] = mine.v[i];
  __syncthreads();
  Lanes<N> sum(0.0f);
  if (threadIdx.y == 0)
    for (int r = 0; r < kRowThreads; ++r)
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += memory[r][threadIdx.x][i];
  return sum;
}

/// to[col] (+)= sum over p of parts[p * stride + col].
template <class T> __global__ void __launch_bounds__(256) add_parts(T* to, bool accumulate, const float* parts, std::int64_t n, std::int64_t stride, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (col >= cols) return;
  float sum = accumulate ? widen(to[col]) : 0.0f;
  for (std::int64_t p = 0; p < n; ++p) sum += parts[p * stride + col];
  to[col] = narrow<T>(sum);
}

/// Grad `to` of (cols) elements gets the sum of n parts.
inline void sum_parts(Stream& s, const Grad& to, const float* parts, std::int64_t n, std::int64_t stride) {
  visit_dtype(to.dtype(), [&]<class T>() {
    add_parts<T><<<blocks_for(to.size(), 256), 256, 0, queue(s)>>>(to.ptr<T>(), to.accumulate(), parts, n, stride, to.size());
    launched("sum of columns");
  });
}

}  // namespace hpcdl::cuda
