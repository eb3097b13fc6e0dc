#pragma once
// cuDNN behind cuda::conv: opened at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Of the library's choices those that are ever asked for.
inline constexpr int kCudnnChoices = 12;

/// True when the library is there and has so many ways to compute c that repeat their bits, in the precision of ours:
/// its first choice is number 0. What it said is remembered per shape.
bool fits_cudnn(Stream& s, const Conv& c, int choice);
/// c, which fits.
void run_cudnn(Stream& s, const Conv& c, int choice);

}  // namespace hpcdl::cuda
