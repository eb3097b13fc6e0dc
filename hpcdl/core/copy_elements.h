#pragma once

#include "hpcdl/tensor.h"

namespace hpcdl {

/// dst = src, element by element, for any strides (so a transposed view is transposed on the way into
/// or out of a file). Shapes and dtypes must be equal and the memory must not overlap; throws Error otherwise.
void copy_elements(Tensor dst, View src);

}  // namespace hpcdl
