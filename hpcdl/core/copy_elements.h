#pragma once

#include "hpcdl/core/tensor.h"

namespace hpcdl {

/// dst = src, element by element, whatever the strides of either (so a transposed view is a transpose on the way into
/// or out of a file). Shapes and dtypes must be equal and the memory must not overlap; throws Error otherwise.
void copy_elements(Tensor dst, View src);

}  // namespace hpcdl
