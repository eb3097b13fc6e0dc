#pragma once
// The GPU driver of fused kernels, for .cu files: the same bodies and chains as on the CPU (for_each.h, fuse.h), with a
// thread's 16-byte share of a row as the value. All operands have y's dtype.
//
//   fuse::run(stream, y, fuse::chain(fuse::load(x), fuse::scale(2), fuse::gelu()));

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/ops/fuse/chain.h"
#include "hpcdl/ops/fuse/plane.h"

namespace hpcdl::fuse {

/// Up to 16 bytes' worth of columns of one row, of which n exist.
template <class T> struct DeviceSpot {
  static constexpr int N = cuda::kLanes<T>;
  using V = cuda::Lanes<N>;
  using Element = T;
  std::int64_t row, col;
  int n;
  const float* stats;

  template <class U = T> __device__ V load(const In& x) const { return cuda::load<N>(x.template at<U>(row, col), n); }
  __device__ V load_columns(const In& b) const { return cuda::load<N>(b.template at<T>(0, col), n); }
  __device__ V stat(int i) const { return V(stats[i]); }
  template <class U = T> __device__ void store(const Out& y, V v) const {
    U* p = y.template at<U>(row, col);
    if (y.accumulate) v = v + cuda::load<N>(static_cast<const U*>(p), n);
    cuda::store(p, v, n);
  }
};

namespace detail {

inline constexpr int kThreads = 256;

template <class T, class Body> __global__ void __launch_bounds__(kThreads) each(Body body, std::int64_t rows, std::int64_t cols) {
  constexpr int N = cuda::kLanes<T>;
  const std::int64_t per_row = (cols + N - 1) / N, i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * per_row) return;
  const std::int64_t row = rows == 1 ? 0 : i / per_row, col = (i - row * per_row) * N;
  body(DeviceSpot<T>{row, col, static_cast<int>(cols - col < N ? cols - col : N), nullptr});
}

/// Statistics K... of a row, one sweep each; every thread of the block gets them.
template <class T, int K, class... S> __device__ void row_statistics(const Chain<S...>& c, std::int64_t row, std::int64_t cols, float* stats) {
  if constexpr (K < reductions_in<S...>) {
    using R = decltype(reduction<K, S...>());
    constexpr int N = cuda::kLanes<T>;
    __shared__ float memory[kThreads / cuda::kWarp];
    cuda::Lanes<N> acc(R::kStart);
    for (std::int64_t col = std::int64_t{threadIdx.x} * N; col < cols; col += kThreads * N) {
      const int n = static_cast<int>(cols - col < N ? cols - col : N);
      const auto v = R::combine(acc, evaluate<K>(c, DeviceSpot<T>{row, col, n, stats}));
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
    body(DeviceSpot<T>{row, col, static_cast<int>(cols - col < N ? cols - col : N), stats});
}

}  // namespace detail

/// body(spot) over the plane.
template <class T, class Body> void for_each(Stream& s, Plane plane, const Body& body, const char* name) {
  const std::int64_t per_row = (plane.cols + cuda::kLanes<T> - 1) / cuda::kLanes<T>;
  if (plane.rows * per_row == 0) return;
  detail::each<T><<<cuda::blocks_for(plane.rows * per_row, detail::kThreads), detail::kThreads, 0, cuda::queue(s)>>>(body, plane.rows, plane.cols);
  cuda::launched(name);
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
