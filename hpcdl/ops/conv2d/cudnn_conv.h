#pragma once
// cuDNN behind cuda::conv: opened at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// True when the library is there and has a way to compute c that repeats its bits, in the precision of ours. What it said is remembered
/// per shape.
bool fits_cudnn(Stream& s, const Conv& c);
/// c, which fits.
void run_cudnn(Stream& s, const Conv& c);

}  // namespace hpcdl::cuda
