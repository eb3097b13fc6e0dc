#pragma once
// Decodes a part of a quantised matrix on a GPU.

#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/stream.h"

namespace hpcdl::cuda {

/// Writes columns [k0, k0 + columns) of rows [r0, r0 + rows) of w, contiguous, to `to` in f32, bf16 or f16. k0 and columns
/// are multiples of the format's block.
void quant_decode(Stream& s, void* to, DType type, const QuantMatrix& w, std::int64_t r0, std::int64_t rows,
                  std::int64_t k0, std::int64_t columns);

}  // namespace hpcdl::cuda
