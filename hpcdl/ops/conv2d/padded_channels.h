#pragma once
// A convolution of odd numbers of channels by one whose pixels are multiples of 16 bytes: operands are copied with zero
// channels added, as many images at a time as fit, and results are copied without them.

#include <functional>
#include <span>

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Numbers of channels of x and y.
struct Channels {
  std::int64_t inputs, outputs;
};

/// The numbers of channels with which kernels read and write 16 bytes at a time.
Channels whole_channels(const Conv& c);

/// Whether c has other numbers of channels than `to`, and one of its images fits.
bool can_pad(const Conv& c, const Channels& to);

/// Computes passes of one convolution by `products` of the padded ones: the same passes of some of the images each time,
/// which may use level 0 of the workspace. False if the first products return false; they then have written no y or dx.
/// Precondition: can_pad() for each.
bool pad_channels(Stream& s, std::span<const Conv> passes, const Channels& to,
                  const std::function<bool(std::span<const Conv>)>& products);

}  // namespace hpcdl::cuda
