#pragma once
// cuDNN as a backend of cuda::conv: loaded at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// The number of the library's choices that are considered.
inline constexpr int kCudnnChoices = 12;

/// True if the library is present and has more than `choice` reproducible ways to compute c with our precision; its
/// first choice is number 0. The answer is cached per shape.
bool fits_cudnn(Stream& s, const Conv& c, int choice);
/// Computes c, for which fits_cudnn() holds.
void run_cudnn(Stream& s, const Conv& c, int choice);

}  // namespace hpcdl::cuda
