#pragma once
// Sums over the rows of a matrix, per column, for gradients of biases and norms: shares of rows go to blocks, each
// thread owns some columns, and shares are added in order, so that results repeat bit for bit.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

inline constexpr int kColumnThreads = kWarp, kRowThreads = 8;

/// The sum of `mine` over the threads of one column (threadIdx.y), valid in threads with threadIdx.y == 0. All threads
/// of the block must call.
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

/// The destination of the sum of parts; null: none.
struct PartsTo {
  void* data;
  DType dtype;
  bool accumulate;
};

/// to[which][col] (+)= sum over p of parts[p * stride + which * cols + col]. A block takes 32 columns; its warps take
/// every 32nd part, and the warps' sums are added in order.
inline constexpr int kPartWarps = 32;
template <int kSums>
__global__ void __launch_bounds__(kWarp* kPartWarps) add_parts(PartsTo first, PartsTo second, const float* parts,
                                                               std::int64_t n, std::int64_t stride, std::int64_t cols) {
  __shared__ float memory[kPartWarps][kWarp + 1];
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const PartsTo to = kSums > 1 && blockIdx.y == 1 ? second : first;
  if (!to.data) return;
  const float* from = parts + blockIdx.y * cols + col;
  float mine = 0;
  if (col < cols) {
#pragma unroll 4
    for (std::int64_t p = threadIdx.y; p < n; p += kPartWarps) mine += from[p * stride];
  }
  memory[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  const auto put = [&]<class T>(T* place) {
    float sum = to.accumulate ? widen(*place) : 0.0f;
    for (int w = 0; w < kPartWarps; ++w) sum += memory[w][threadIdx.x];
    *place = narrow<T>(sum);
  };
  if (to.dtype == DType::bf16) put(static_cast<bf16*>(to.data) + col);
  else if (to.dtype == DType::f16) put(static_cast<f16*>(to.data) + col);
  else put(static_cast<float*>(to.data) + col);
}

/// Writes the sum of n parts to Grad `to` of (cols) elements.
inline void sum_parts(Stream& s, const Grad& to, const float* parts, std::int64_t n, std::int64_t stride) {
  add_parts<1><<<blocks_for(to.size(), kWarp), dim3(kWarp, kPartWarps), 0, queue(s)>>>(
      {to.data(), to.dtype(), to.accumulate()}, {}, parts, n, stride, to.size());
  launched("sum of columns");
}
/// The same for two results of equal size. Either may be absent; the parts of the second follow those of the first.
inline void sum_parts(Stream& s, const Grad& first, const Grad& second, const float* parts, std::int64_t n,
                      std::int64_t stride) {
  const std::int64_t cols = first ? first.size() : second ? second.size() : 0;
  if (cols == 0) return;
  add_parts<2><<<dim3(blocks_for(cols, kWarp), second ? 2 : 1), dim3(kWarp, kPartWarps), 0, queue(s)>>>(
      {first.data(), first.dtype(), first.accumulate()}, {second.data(), second.dtype(), second.accumulate()}, parts, n,
      stride, cols);
  launched("sum of columns");
}

}  // namespace hpcdl::cuda
