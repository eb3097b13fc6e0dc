#include <type_traits>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/quant_linear/quant_device.cuh"
#include "hpcdl/ops/quant_linear/quant_few.h"

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 8;  // of a block; each multiplies one row of W

struct Few {
  const void *x, *bias, *residual;
  void* y;
  DType bias_type, y_type;
  std::int64_t x_stride, residual_stride, y_stride;
  int rows;
};

/// y[c][row of the warp], for the first `rows` of C rows of x. The threads of a warp decode pieces in turns, and their sums
/// are added in an order that depends only on the shape.
template <QuantFormat format, int alignment, class X, int C>
__global__ void __launch_bounds__(kWarps* kWarp) few_rows(QuantWeights w, Few f) {
  const float* values = table_of_block<format>(w);
  const unsigned lane = threadIdx.x % kWarp, pieces = static_cast<unsigned>(w.k / 8);
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= w.n) return;
  const QuantRow<format, alignment> decode(w, row, values);
  float sum[C] = {};
#pragma unroll 4
  for (unsigned p = lane; p < pieces; p += kWarp) {
    const Piece piece = decode(p);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (c > 0 && c >= f.rows) break;
      const X* x = static_cast<const X*>(f.x) + c * f.x_stride;
      const Lanes<4> a = load<4>(x + piece.first), b = load<4>(x + piece.second);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[c] = ::fmaf(piece.v[i], a.v[i], sum[c]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[c] = ::fmaf(piece.v[4 + i], b.v[i], sum[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    float y = warp_reduce(sum[c], Sum());
    if (lane != static_cast<unsigned>(c) || c >= f.rows) continue;
    if (f.bias) y += fetch(f.bias, f.bias_type, row);
    if (f.residual) y += fetch(f.residual, f.y_type, c * f.residual_stride + row);
    put(f.y, f.y_type, c * f.y_stride + row, y);
  }
}

}  // namespace

bool quant_few_rows_can(const View& x, const QuantMatrix& w) {
  return x.rows() <= QuantLinear::kFewRows &&
         reinterpret_cast<std::uintptr_t>(w.parts.codes.data()) % quant_alignment(w.format) == 0;
}

void quant_few_rows(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual) {
  const Few f{.x = x.data(),
              .bias = bias.data(),
              .residual = residual.data(),
              .y = y.data(),
              .bias_type = bias.dtype(),
              .y_type = y.dtype(),
              .x_stride = x.row_stride(),
              .residual_stride = residual ? residual.row_stride() : 0,
              .y_stride = y.row_stride(),
              .rows = static_cast<int>(x.rows())};
  const QuantWeights weights(w);
  visit_dtype(x.dtype(), [&]<class X>() {
    visit_quant_format(w.format, [&]<QuantFormat format>() {
      constexpr int alignment = quant_alignment(format);
      const unsigned blocks = blocks_for(weights.n, kWarps);
      const auto run = [&]<int C>() {
        few_rows<format, alignment, X, C><<<blocks, kWarps * kWarp, 0, queue(s)>>>(weights, f);
      };
      if constexpr (!quant_format_info(format).rotated || std::is_same_v<X, float>) {
        if (f.rows == 1) run.template operator()<1>();
        else run.template operator()<8>();
        launched("quant_linear");
      }
    });
  });
}

}  // namespace hpcdl::cuda
