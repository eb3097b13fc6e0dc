#pragma once
// Rows of x as rotated weights multiply them, on GPUs.

#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl::cuda {

/// Rotates every 256 numbers of each row of x (rows, K), of f32, bf16 or f16, into `to`, contiguous. In f32 it is the rotation
/// itself. In the type of x, if that has 16 bits, it is a 16th of it, rounded: such numbers are not larger than those of x.
void rotate_rows(Stream& s, void* to, DType type, const View& x);

}  // namespace hpcdl::cuda
