#include <algorithm>

#include "hpcdl/cuda/columns.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {
namespace {

/// Column sums of `rows` rows of dy, a share of rows per block, to parts[blockIdx.y].
template <class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads)
    channel_sums(const T* dy, std::int64_t rows, std::int64_t cols, std::int64_t rows_per_block, float* parts) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N;
  const std::int64_t first = blockIdx.y * rows_per_block,
                     end = first + rows_per_block < rows ? first + rows_per_block : rows;
  const int n = static_cast<int>(cols - col < N ? cols - col : N);
  Lanes<N> sum(0.0f);
  if (n > 0)
#pragma unroll 4
    for (std::int64_t r = first + threadIdx.y; r < end; r += kRowThreads) sum = sum + load<N>(dy + r * cols + col, n);
  sum = sum_over_row_threads(sum);
  if (threadIdx.y == 0 && n > 0) store(parts + blockIdx.y * cols + col, sum, n);
}

void bias_gradient(Stream& s, const Grad& dbias, const View& dy) {
  constexpr std::int64_t kBlocks = 792,
                         kFewest = 4 * kRowThreads;  // fill any GPU; keep the parts few
  const std::int64_t cols = dy.cols(), rows = dy.rows(),
                     most = std::min<std::int64_t>(65535, static_cast<std::int64_t>(kWorkspaceBytes / 4) / cols);
  auto* parts = static_cast<float*>(workspace(s));
  visit_dtype(dy.dtype(), [&]<class T>() {
    const unsigned columns = blocks_for(cols, kColumnThreads * kLanes<T>);
    const std::int64_t shares = std::clamp<std::int64_t>(kBlocks / columns, 1, most),
                       per_block = std::max(kFewest, (rows + shares - 1) / shares);
    const unsigned used = blocks_for(rows, per_block);
    if (used > 0) {
      channel_sums<<<dim3(columns, used), dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(dy.ptr<T>(), rows, cols,
                                                                                            per_block, parts);
      launched("conv2d_backward");
    }
    sum_parts(s, dbias, parts, used, cols);
  });
}

ConvOperand operand(const View& v) { return {v.data(), v.dtype()}; }

}  // namespace

void conv2d(Stream& s, Tensor y, View x, View w, View bias, const Conv2d::Args& a) {
  conv(s, {.pass = ConvPass::forward,
           .shape = Conv2d::shape(x.spec(), w.spec(), a),
           .compute = x.dtype(),
           .x = operand(x),
           .w = operand(w),
           .dy = {},
           .bias = operand(bias),
           .out = y.data(),
           .out_dtype = y.dtype()});
}

void conv2d_backward(Stream& s, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Conv2d::Args& a) {
  const auto pass = [&](ConvPass which, const Grad& to) {
    return Conv{.pass = which,
                .shape = Conv2d::shape(x.spec(), w.spec(), a),
                .compute = x.dtype(),
                .x = operand(x),
                .w = operand(w),
                .dy = operand(dy),
                .bias = {},
                .out = to.data(),
                .out_dtype = to.dtype(),
                .accumulate = to.accumulate()};
  };
  if (dx && dw) conv_gradients(s, pass(ConvPass::data, dx), pass(ConvPass::weight, dw));
  else if (dx) conv(s, pass(ConvPass::data, dx));
  else if (dw) conv(s, pass(ConvPass::weight, dw));
  if (dbias) bias_gradient(s, dbias, dy);
}

}  // namespace hpcdl::cuda
