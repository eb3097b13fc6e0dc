#pragma once
// Our own kernels for cuda::conv: implicit GEMM for every shape, stride, dilation, address and mix of types.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Throws if pixels or terms cannot be counted in 29 bits.
void implicit_gemm(Stream& s, const Conv& c);
/// Both gradients of one convolution.
void implicit_gemm_gradients(Stream& s, const Conv& data, const Conv& weight);

// Each in its own file.
void implicit_gemm_forward(Stream& s, const Conv& c);
void implicit_gemm_data(Stream& s, const Conv& c);
void implicit_gemm_weight(Stream& s, const Conv& c);
/// The same by wgmma; false if the operands are not suitable: GPUs other than Hopper, f32, few channels.
bool tile_weight(Stream& s, const Conv& c);

/// Images whose channels take less than 16 bytes (few_channels.h), on tensor cores; dx on Hopper. False if c does not
/// qualify.
bool few_forward(Stream& s, const Conv& c);
bool narrow_backward_data(Stream& s, const Conv& c);
bool few_weight(Stream& s, const Conv& c);
/// y on the CUDA cores, for few terms; false if c does not qualify.
bool few_channels(Stream& s, const Conv& c);

// Layout of a stream's workspace: copies of weights, then weights as narrow_backward_data() reads them, shares of sums.
// cuDNN's scratch follows the first. Level 1: images in parts, or all operands with padded channels.
inline constexpr std::size_t kConvWeightBytes = std::size_t{16} << 20, kConvNarrowWeightBytes = std::size_t{4} << 20,
                             kConvShares = kConvWeightBytes + kConvNarrowWeightBytes;

/// c with an f32 weight copied to the type of its 16-bit images, if there is room; the kernels read either.
Conv with_weight_copied(Stream& s, const Conv& c);

/// Where shares of f32 sums go after they are added in order, and their layout.
struct ConvSums {
  const Conv& c;
  std::int64_t rows, columns;
  std::int64_t size() const { return rows * columns; }
};
float* conv_parts(const Stream& s);
/// The number of shares that fit.
std::int64_t conv_parts_room(const ConvSums& sums);
void add_conv_shares(Stream& s, const ConvSums& sums, int shares);

}  // namespace hpcdl::cuda
