#include "hpcdl/ops/bias_gelu/bias_gelu.h"

#include <algorithm>

#include "hpcdl/cuda/columns.cuh"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {
namespace {

template <class F> void with_form(const Gelu::Args& a, F&& f) {
  if (a.form == Gelu::Form::tanh) f.template operator()<fuse::GeluTanh>();
  else f.template operator()<fuse::GeluErf>();
}

struct Backward {
  fuse::Out dx;
  fuse::In x, b, dy;
  float* partial;
  std::int64_t rows, cols, parts;
};

/// Rows of a thread in flight.
constexpr int kInFlight = 2;
/// As many parts as give each thread that many rows, so that few rows leave no threads idle and few sums to add.
std::int64_t parts_of(std::int64_t rows) {
  constexpr std::int64_t kRows = kInFlight * kRowThreads;
  return std::clamp<std::int64_t>((rows + kRows - 1) / kRows, 1, BiasGelu::kParts);
}

/// Block (column tile, part): the gradient of its rows, and their sum.
template <class F, class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads) bias_gelu_kernel(Backward o) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N, part = blockIdx.y;
  const int n = static_cast<int>(o.cols - col < N ? o.cols - col : N);
  Lanes<N> sum(0.0f);
  if (n > 0) {
    constexpr int K = kInFlight;
    const auto bias = load<N>(o.b.at<T>(0, col), n);
    const std::int64_t begin = o.rows * part / o.parts, end = o.rows * (part + 1) / o.parts;
    for (auto r = begin + threadIdx.y; r < end; r += K * kRowThreads) {
      Pack<T, N> x[K], dy[K];
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int here = r + k * kRowThreads < end ? n : 0;
        x[k] = read<N>(o.x.at<T>(r + k * kRowThreads, col), 0, here, T{});
        dy[k] = read<N>(o.dy.at<T>(r + k * kRowThreads, col), 0, here, T{});
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const auto g = widen(dy[k]) * F::slope(widen(x[k]) + bias);  // 0 if the row does not exist
        sum = sum + g;
        if (!o.dx || r + k * kRowThreads >= end) continue;
        T* to = o.dx.at<T>(r + k * kRowThreads, col);
        store(to, o.dx.accumulate ? g + load<N>(static_cast<const T*>(to), n) : g, n);
      }
    }
  }
  sum = sum_over_row_threads(sum);
  if (threadIdx.y == 0 && n > 0) store(o.partial + part * o.cols + col, sum, n);
}

}  // namespace

void bias_gelu(Stream& s, Tensor y, View x, View b, const Gelu::Args& a) {
  with_form(a, [&]<class F>() {
    fuse::run(s, y, fuse::chain(fuse::load(x), fuse::add_columns(b), fuse::Apply<F>{}), "bias_gelu");
  });
}

void bias_gelu_backward(Stream& s, Grad dx, Grad db, View x, View b, View dy, Tensor scratch, const Gelu::Args& a) {
  if (x.cols() == 0) return;
  const Backward o{dx, x, b, dy, scratch.ptr<float>(), x.rows(), x.cols(), parts_of(x.rows())};
  visit_dtype(x.dtype(), [&]<class T>() {
    with_form(a, [&]<class F>() {
      const dim3 grid(blocks_for(o.cols, kColumnThreads * kLanes<T>), static_cast<unsigned>(o.parts));
      bias_gelu_kernel<F, T><<<grid, dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(o);
      launched("bias_gelu_backward");
    });
  });
  if (db) sum_parts(s, db, scratch.ptr<float>(), o.parts, o.cols);
}

}  // namespace hpcdl::cuda
