#pragma once
// Widens 4-bit weights on a GPU.

#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

/// Writes rows [row, row + rows) of w in f32 or bf16, contiguous from `out` on, which is aligned to 16 bytes. `row` is
/// a multiple of 16; `rows` is one as well, or all remaining rows. In two parts, bf16 only: rows are 2 K wide, and after
/// the rounded weights follows what rounding has cut off, rounded as well.
void int4_widen(Stream& s, void* out, DType dtype, const int4::Weight& w, std::int64_t row, std::int64_t rows,
                bool two_parts = false);

}  // namespace hpcdl::cuda
