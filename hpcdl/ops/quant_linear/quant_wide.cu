#include "hpcdl/ops/quant_linear/quant_wide.h"

#include <algorithm>
#include <iterator>

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/shared_memory.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/quant_linear/quant_tiles.h"
#include "hpcdl/ops/quant_linear/quant_wide.cuh"

namespace hpcdl::cuda {
namespace {

/// Bytes of x as it is arranged.
std::int64_t arranged_bytes(std::int64_t rows, std::int64_t k, int cols) {
  return (rows + cols - 1) / cols * cols * ((k + kSegment - 1) / kSegment * kSegment) * 2;
}

}  // namespace

bool quant_wide_can(const Stream& s, const View& x, const QuantMatrix& w) {
  return x.dtype() == DType::bf16 && has_sm90a(s) && quant_tiles_can(s, x, w) &&
         arranged_bytes(x.rows(), x.cols(), kWideCols[std::size(kWideCols) - 1]) <=
             static_cast<std::int64_t>(kWorkspaceBytes);
}

/// In us, as an H200 takes for NF4: a block's segment with 32, 64 and 128 rows of x 1.3, 1.6 and 2.3.
WideShape wide_shape(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t processors = multiprocessors(s), segments = up(k, kSegment), items = up(n, kWideRows);
  WideShape best;
  double least = 0;
  for (const int cols : kWideCols)
    for (int splits = 1; splits <= kMostWideSplits; ++splits) {
      const std::int64_t columns = up(rows, cols),
                         turns = splits == 1 ? up(items, std::max<std::int64_t>(1, processors / columns))
                                             : up(items * columns * splits, processors);
      const double time =
          static_cast<double>(turns * up(segments, splits)) * (0.95 + 0.0103 * cols) + static_cast<double>(splits);
      if (least == 0 || time < least) least = time, best = {cols, splits};
    }
  return best;
}

void quant_wide(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights,
                WideShape shape) {
  visit_quant_format(w.format, [&]<QuantFormat format>() {
    if constexpr (has_tiles(format))
      run_wide<format>(s, tile_operands(y, x, w, bias, residual, constant_weights), workspace(s), shape.cols,
                       shape.splits);
  });
}

}  // namespace hpcdl::cuda
