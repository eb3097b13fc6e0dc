#include "hpcdl/ops/quant_linear/quant_tiles.h"

#include "hpcdl/cuda/shared_memory.h"
#include "hpcdl/ops/quant_linear/quant_tiles.cuh"

namespace hpcdl::cuda {
namespace {

bool aligned(const void* p, std::int64_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

}  // namespace

bool quant_tiles_can(const Stream& s, const View& x, const QuantMatrix& w) {
  return has_tiles(w.format) && (x.dtype() == DType::bf16 || x.dtype() == DType::f16) &&
         has_room(s, kMostSharedBytes) && aligned(x.data(), 16) && x.row_stride() % 8 == 0 &&
         aligned(w.parts.codes.data(), 16);
}

void quant_tiles(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights,
                 int shape) {
  const TileOperands o = tile_operands(y, x, w, bias, residual, constant_weights);
  visit_quant_format(w.format, [&]<QuantFormat format>() {
    if constexpr (has_tiles(format)) {
      if (x.dtype() == DType::bf16) run_tiles<format, bf16>(s, o, shape);
      else run_tiles<format, f16>(s, o, shape);
    }
  });
}

}  // namespace hpcdl::cuda
