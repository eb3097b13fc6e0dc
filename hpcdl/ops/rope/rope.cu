#include "hpcdl/ops/rope/rope.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

struct Rotation {
  void* y;
  const void* x;
  const float* table;
  const StepParams* params;
  std::int64_t batch, tokens, heads, half, positions;
  std::int64_t y_strides[3], x_strides[3];  // of batch, token, head
  float sign;
  bool accumulate;
};

/// A thread rotates up to N pairs of one head.
template <class T> __global__ void __launch_bounds__(256) rotate(Rotation r) {
  constexpr int N = kLanes<T>;
  const std::int64_t per_head = (r.half + N - 1) / N, i = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= r.batch * r.tokens * r.heads * per_head) return;
  const std::int64_t at = i % per_head * N, h = i / per_head % r.heads, t = i / per_head / r.heads % r.tokens, b = i / per_head / r.heads / r.tokens;
  const int n = static_cast<int>(r.half - at < N ? r.half - at : N);
  const std::int64_t position = r.params->position + t;
  T* y = static_cast<T*>(r.y) + b * r.y_strides[0] + t * r.y_strides[1] + h * r.y_strides[2] + at;
  const T* x = static_cast<const T*>(r.x) + b * r.x_strides[0] + t * r.x_strides[1] + h * r.x_strides[2] + at;
  Lanes<N> c(__builtin_nanf("")), s(__builtin_nanf(""));  // a position that the table does not hold shows in the result
  if (position >= 0 && position < r.positions) {
    const float* angles = r.table + position * 2 * r.half + at;
    c = load<N>(angles, n), s = load<N>(angles + r.half, n) * Lanes<N>(r.sign);
  }
  const auto x1 = load<N>(x, n), x2 = load<N>(x + r.half, n);
  auto y1 = fma(x1, c, Lanes<N>(0.0f) - x2 * s), y2 = fma(x2, c, x1 * s);
  if (r.accumulate) y1 = y1 + load<N>(static_cast<const T*>(y), n), y2 = y2 + load<N>(static_cast<const T*>(y + r.half), n);
  store(y, y1, n);
  store(y + r.half, y2, n);
}

}  // namespace

void rope(Stream& s, Grad y, View x, View table, float sign, const Rope::Args& a) {
  const std::int64_t d = a.head_dim > 0 ? a.head_dim : x.cols();
  const bool split = x.rank() == 4;
  const Rotation r{y.data(), x.data(), table.ptr<float>(), s.kernel_params(), x[0], x[1], split ? x[2] : x.cols() / d, d / 2, table[0],
                   {y.strides()[0], y.strides()[1], split ? y.strides()[2] : d},
                   {x.strides()[0], x.strides()[1], split ? x.strides()[2] : d}, sign, y.accumulate()};
  visit_dtype(x.dtype(), [&]<class T>() {
    const std::int64_t work = r.batch * r.tokens * r.heads * ((r.half + kLanes<T> - 1) / kLanes<T>);
    if (work == 0) return;
    rotate<T><<<blocks_for(work, 256), 256, 0, queue(s)>>>(r);
    launched("rope");
  });
}

}  // namespace hpcdl::cuda
