#pragma once
// Where elements of a parameter lie in files, which hold the dims of images in another order than memory.

#include "hpcdl/box.h"
#include "hpcdl/nn/param.h"

namespace hpcdl {

/// Elements `range` of what memory holds of the parameter, in row-major order there, as a part of the tensor in files.
/// The holder's tensor has one dim.
Part file_part(const nn::Param& p, Interval range);

}  // namespace hpcdl
