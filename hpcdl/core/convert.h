#pragma once

#include "hpcdl/core/tensor.h"

namespace hpcdl {

/// dst = src, by way of float, rounded to the nearest value of dst's type. f32, bf16, f16 and f64; contiguous, of one
/// shape. src need not be aligned.
void convert_elements(Tensor dst, View src);

/// Elements that are NaN or infinite. Of the same types and as contiguous; need not be aligned.
std::int64_t count_non_finite(View x);

}  // namespace hpcdl
