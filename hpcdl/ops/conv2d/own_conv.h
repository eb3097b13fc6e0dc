#pragma once
// Our own kernels behind cuda::conv: implicit GEMM for every shape, stride, dilation, address and mix of types.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Throws where pixels or terms cannot be counted in 29 bits.
void own_conv(Stream& s, const Conv& c);

// One file each.
void own_forward(Stream& s, const Conv& c);
void own_data(Stream& s, const Conv& c);
void own_weight(Stream& s, const Conv& c);

/// Of a stream's workspace: copies of weights below, shares of sums and cuDNN's scratch above.
inline constexpr std::size_t kConvWeightBytes = std::size_t{16} << 20;

/// c with a f32 weight beside 16-bit images copied to their type, if there is room; the kernels read either.
Conv with_weight_copied(Stream& s, const Conv& c);
/// dw (+)= the sum of `shares` parts of f32, in order.
void add_conv_shares(Stream& s, const Conv& c, const float* parts, int shares);

}  // namespace hpcdl::cuda
