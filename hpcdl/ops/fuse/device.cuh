#pragma once
// The GPU driver of fused kernels, for .cu files: the same bodies and chains as on the CPU (for_each.h, fuse.h), where
// a value is a thread's 16-byte accesses to a row. All operands have y's dtype.
//
//   fuse::run(stream, y, fuse::chain(fuse::load(x), fuse::scale(2), fuse::gelu()));

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/fuse/chain.h"
#include "hpcdl/ops/fuse/plane.h"

namespace hpcdl::fuse {

/// K accesses of up to 16 bytes in columns of one row, `step` columns apart: all of an operand's accesses are issued
/// before the first is used. `end`: columns of the row.
template <class T, int K = 1> struct DeviceSpot {
  static constexpr int kEach = cuda::kLanes<T>, N = K * kEach;
  using V = cuda::Lanes<N>;
  using Element = T;
  std::int64_t row, col, end;
  int step;
  const float* stats;

  /// Column of lane i.
  __device__ std::int64_t column(int i) const { return col + i / kEach * step + i % kEach; }
  template <class U = T> __device__ V load(const In& x) const { return load_from(x.template at<U>(row, col)); }
  __device__ V load_columns(const In& b) const { return load_from(b.template at<T>(0, col)); }
  __device__ V stat(int i) const { return V(stats[i]); }
  template <class U = T> __device__ void store(const Out& y, V v) const {
    U* p = y.template at<U>(row, col);
    if (y.accumulate) v = v + load_from(static_cast<const U*>(p));
#pragma unroll
    for (int k = 0; k < K; ++k)
      cuda::store(p + k * step, cuda::map<kEach>([&](int i) { return v.v[k * kEach + i]; }), here(k));
  }

 private:
  __device__ int here(int k) const {
    const std::int64_t left = end - col - k * step;
    return static_cast<int>(left < kEach ? left : kEach);
  }
  template <class U> __device__ V load_from(const U* p) const {
    cuda::Pack<U, kEach> packs[K];
#pragma unroll
    for (int k = 0; k < K; ++k) packs[k] = cuda::read<kEach>(p + k * step, 0, here(k), U{});
    return cuda::map<N>([&](int i) { return cuda::widen(packs[i / kEach]).v[i % kEach]; });
  }
};

namespace detail {

inline constexpr int kThreads = 256;

/// blockDim.y rows per block, with blockDim.x threads and K accesses of each per row; `tiles` blocks cover the columns.
template <class T, int K, class Body>
__global__ void __launch_bounds__(kThreads) each(Body body, std::int64_t rows, std::int64_t cols, unsigned tiles) {
  constexpr int N = cuda::kLanes<T>;
  cuda::let_next_begin();
  cuda::await_previous();
  const unsigned tile = tiles == gridDim.x ? blockIdx.x : blockIdx.x % tiles,
                 band = tiles == gridDim.x ? 0 : blockIdx.x / tiles;
  const std::int64_t row = std::int64_t{band} * blockDim.y + threadIdx.y,
                     col = (std::int64_t{tile} * K * blockDim.x + threadIdx.x) * N;
  if (row < rows && col < cols) body(DeviceSpot<T, K>{row, col, cols, static_cast<int>(blockDim.x) * N, nullptr});
}

/// Threads per row where `share` threads would suffice: a power of two, or whole warps, so that few are idle.
inline unsigned threads_for(std::int64_t share) {
  unsigned wide = 1;
  while (wide < cuda::kWarp && wide < share) wide *= 2;
  return wide < share ? (static_cast<unsigned>(share) + cuda::kWarp - 1) / cuda::kWarp * cuda::kWarp : wide;
}

/// Computes statistics K... of a row, one sweep each; every thread of the block receives them.
template <class T, int K, class... S>
__device__ void row_statistics(const Chain<S...>& c, std::int64_t row, std::int64_t cols, float* stats) {
  if constexpr (K < reductions_in<S...>) {
    using R = decltype(reduction<K, S...>());
    constexpr int N = cuda::kLanes<T>;
    __shared__ float memory[kThreads / cuda::kWarp];
    cuda::Lanes<N> acc(R::kStart);
    for (std::int64_t col = std::int64_t{threadIdx.x} * N; col < cols; col += kThreads * N) {
      const int n = static_cast<int>(cols - col < N ? cols - col : N);
      const auto v = R::combine(acc, evaluate<K>(c, DeviceSpot<T>{row, col, cols, 0, stats}));
#pragma unroll
      for (int i = 0; i < N; ++i) acc.v[i] = i < n ? v.v[i] : acc.v[i];
    }
    float total;
    if constexpr (R::kStart == 0) total = cuda::block_reduce<kThreads>(cuda::sum(acc), cuda::Sum{}, memory);
    else total = cuda::block_reduce<kThreads>(cuda::largest(acc), cuda::Max{}, memory);
    stats[K] = R::finish(total, cols);
    __syncthreads();
    row_statistics<T, K + 1>(c, row, cols, stats);
  }
}

template <class T, class... S> __global__ void __launch_bounds__(kThreads) rows(Store<S...> body, std::int64_t cols) {
  constexpr int N = cuda::kLanes<T>;
  const std::int64_t row = blockIdx.x;
  float stats[reductions_in<S...>];
  row_statistics<T, 0>(body.c, row, cols, stats);
  for (std::int64_t col = std::int64_t{threadIdx.x} * N; col < cols; col += kThreads * N)
    body(DeviceSpot<T>{row, col, cols, 0, stats});
}

}  // namespace detail

/// Accesses per thread and operand for planes that fill the GPU many times over; smaller ones are spread over more
/// threads instead.
inline constexpr int kMany = 2;
inline constexpr std::int64_t kManyFrom = std::int64_t{1} << 19;  // accesses

/// body(spot) over the plane.
template <class T, class Body> void for_each(Stream& s, Plane plane, const Body& body, const char* name) {
  const std::int64_t per_row = (plane.cols + cuda::kLanes<T> - 1) / cuda::kLanes<T>;
  if (plane.rows * per_row == 0) return;
  const auto launch = [&]<int K>() {
    unsigned tiles = cuda::blocks_for(per_row, detail::kThreads * K),
             wide = detail::kThreads;  // blocks and threads per row
    if (plane.rows > 1)
      wide = detail::threads_for((per_row + tiles * K - 1) / (tiles * K)), tiles = cuda::blocks_for(per_row, wide * K);
    const unsigned high = detail::kThreads / wide;
    cuda::launch_overlapped(
        cuda::queue(s), cuda::overlaps(s, plane.rows * per_row / detail::kThreads), detail::each<T, K, Body>,
        {.grid = cuda::blocks_for((plane.rows + high - 1) / high * tiles, 1), .block = dim3(wide, high)}, name, body,
        plane.rows, plane.cols, tiles);
  };
  if (plane.rows * per_row >= kManyFrom) launch.template operator()<kMany>();
  else launch.template operator()<1>();
}

template <class... S> void run(Stream& s, const Grad& y, const Chain<S...>& c, const char* name) {
  const Store<S...> body{y, c};
  visit_dtype(y.dtype(), [&]<class T>() {
    if constexpr (detail::reductions_in<S...> == 0) {
      const bool flat = y.is_contiguous() && detail::flat(c, y.cols());
      for_each<T>(s, flat ? Plane{1, y.size()} : Plane{y.rows(), y.cols()}, body, name);
    } else {
      if (y.size() == 0) return;
      detail::rows<T><<<cuda::blocks_for(y.rows(), 1), detail::kThreads, 0, cuda::queue(s)>>>(body, y.cols());
      cuda::launched(name);
    }
  });
}
template <class... S> void run(Stream& s, const Tensor& y, const Chain<S...>& c, const char* name) {
  run(s, Grad(y, Write::overwrite), c, name);
}

}  // namespace hpcdl::fuse
