#pragma once

#include "hpcdl/tensor.h"

namespace hpcdl {

/// dst = src, converted through float and rounded to the nearest value of dst's type. f32, bf16, f16 and f64;
/// contiguous, of one shape. src need not be aligned.
void convert_elements(Tensor dst, View src);

/// Number of elements that are NaN or infinite. Same types, contiguous; need not be aligned.
std::int64_t count_non_finite(View x);

}  // namespace hpcdl
