#include "hpcdl/ops/quant_linear/quant_tiles.h"

#include "hpcdl/cuda/shared_memory.h"
#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"

namespace hpcdl::cuda {
namespace {

/// From here on decoding W once and a product of cuBLASLt take less time than tiles that decode it for every 64 rows.
constexpr std::int64_t kMostRows = 128;

bool aligned(const void* p, std::int64_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

}  // namespace

bool quant_tiles_can(const Stream& s, const View& x, const QuantMatrix& w) {
  return (x.dtype() == DType::bf16 || x.dtype() == DType::f16) && x.rows() <= kMostRows &&
         has_room(s, kMostSharedBytes) && aligned(x.data(), 16) && x.row_stride() % 8 == 0 &&
         aligned(w.parts.codes.data(), 16);
}

void quant_tiles(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, int shape) {
  const QuantWeights weights(w);
  const TileOperands o{.w = weights,
                       .x = x.data(),
                       .bias = bias.data(),
                       .residual = residual.data(),
                       .y = y.data(),
                       .bias_type = bias.dtype(),
                       .y_type = y.dtype(),
                       .x_stride = x.row_stride(),
                       .residual_stride = residual ? residual.row_stride() : 0,
                       .y_stride = y.row_stride(),
                       .rows = static_cast<int>(x.rows()),
                       .scale_words = aligned(weights.scale, 4) && weights.k % kSegment == 0};
  if (x.dtype() == DType::bf16) run_tiles<bf16>(s, w.format, o, shape);
  else run_tiles<f16>(s, w.format, o, shape);
}

}  // namespace hpcdl::cuda
