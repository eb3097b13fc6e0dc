#pragma once
// 4-bit weights taken apart on a GPU.

#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

/// Rows [row, row + rows) of w in f32 or bf16, contiguous from `out` on, a multiple of 16 bytes. `row` is a multiple of
/// 16; `rows` as well, or all that are left.
void int4_widen(Stream& s, void* out, DType dtype, const int4::Weight& w, std::int64_t row, std::int64_t rows);

}  // namespace hpcdl::cuda
