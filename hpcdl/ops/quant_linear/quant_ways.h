#pragma once
// Which kernels multiply a quantised matrix on a GPU.

#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::cuda {

enum class QuantWay : std::uint8_t {
  few,    // rows of f32, or on a GPU before Hopper (quant_few.h)
  tiles,  // rows of 16 bits (quant_tiles.h)
  wide,   // more rows of bf16 (quant_wide.h)
  panels  // decoded panels of W and ordinary products
};

/// Depends on types and shapes, on the GPU, and on whether operands lie at multiples of 16 bytes, as programs place them.
QuantWay quant_way(const Stream& s, const View& x, const QuantMatrix& w);

}  // namespace hpcdl::cuda
