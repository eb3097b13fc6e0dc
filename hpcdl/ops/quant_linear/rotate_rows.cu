#include "hpcdl/ops/quant_linear/rotate_rows.h"

#include <array>
#include <type_traits>

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/quant_linear/quant_rotation.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128;

/// A block of 256 for each warp.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    rotate(Y* __restrict__ to, const X* __restrict__ x, std::int64_t stride, unsigned of_row, unsigned blocks) {
  let_next_begin();
  await_previous();
  const unsigned b = (blockIdx.x * kThreads + threadIdx.x) / kWarp, first = threadIdx.x % kWarp * 8;
  if (b >= blocks) return;
  Lanes<8> v = load<8>(x + b / of_row * stride + b % of_row * kRotated + first);
  apply_signs(v.v, first, first + 4, std::is_same_v<Y, float> ? 1.0f / 16 : 1.0f / 256);
  hadamard(v.v);
  store(to + std::int64_t{b} * kRotated + first, v);
}

}  // namespace

void rotate_rows(Stream& s, void* to, DType type, const View& x) {
  const std::int64_t of_row = x.cols() / kRotated, blocks = x.rows() * of_row;
  if (blocks == 0) return;
  visit_dtype(x.dtype(), [&]<class X>() {
    const auto run = [&]<class Y>() {
      launch_overlapped(queue(s), has_clusters(s), rotate<X, Y>,
                        {.grid = dim3(blocks_for(blocks, kThreads / kWarp)), .block = dim3(kThreads)}, "rotate_rows",
                        static_cast<Y*>(to), x.ptr<X>(), x.row_stride(), static_cast<unsigned>(of_row),
                        static_cast<unsigned>(blocks));
    };
    if (type == DType::f32) run.template operator()<float>();
    else run.template operator()<X>();
  });
}

}  // namespace hpcdl::cuda
