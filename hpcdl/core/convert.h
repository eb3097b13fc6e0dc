#pragma once

#include "hpcdl/core/tensor.h"

namespace hpcdl {

/// dst = src, by way of float, rounded to the nearest value of dst's type. f32, bf16, f16 and f64; contiguous, of one
/// shape. src need not be aligned.
void convert_elements(Tensor dst, View src);

}  // namespace hpcdl
