#pragma once
// Our own kernels for cuda::conv: implicit GEMM for every shape, stride, dilation, address and mix of types.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Throws if pixels or terms cannot be counted in 29 bits.
void implicit_gemm(Stream& s, const Conv& c);
/// Both gradients of one convolution.
void implicit_gemm_gradients(Stream& s, const Conv& data, const Conv& weight);

// Each in its own file. With padded copies: if x and w are copies, c has their channels and dw fewer; if only w is a
// copy, dx has the channels of c.
void implicit_gemm_forward(Stream& s, const Conv& c);
void implicit_gemm_data(Stream& s, const Conv& c, std::int64_t padded);
void implicit_gemm_weight(Stream& s, const Conv& c, std::int64_t inputs);
/// The same by wgmma; false if the operands are not suitable: GPUs other than Hopper, f32, few channels.
bool tile_weight(Stream& s, const Conv& c);

/// Images whose channels take less than 16 bytes (few_channels.h), on tensor cores; dx on Hopper. False if c does not
/// qualify.
bool few_forward(Stream& s, const Conv& c);
bool narrow_backward_data(Stream& s, const Conv& c);
bool few_weight(Stream& s, const Conv& c);
/// y on the CUDA cores, for few terms; false if c does not qualify.
bool few_channels(Stream& s, const Conv& c);

// Layout of a stream's workspace: copies of weights, padded copies of weights, padded copies of images, shares of sums.
// cuDNN's scratch follows the first.
inline constexpr std::size_t kConvWeightBytes = std::size_t{16} << 20, kConvPaddedWeight = kConvWeightBytes,
                             kConvPaddedImages = std::size_t{20} << 20, kConvShares = std::size_t{44} << 20;

/// c with an f32 weight copied to the type of its 16-bit images, if there is room; the kernels read either.
Conv with_weight_copied(Stream& s, const Conv& c);

/// Where shares of f32 sums go after they are added in order, and their layout: rows of `from_columns`, of which the
/// first `columns` count.
struct ConvSums {
  const Conv& c;
  std::int64_t rows, columns, from_columns;
  std::int64_t size() const { return rows * from_columns; }
};
float* conv_parts(const Stream& s);
/// The number of shares that fit.
std::int64_t conv_parts_room(const ConvSums& sums);
void add_conv_shares(Stream& s, const ConvSums& sums, int shares);

}  // namespace hpcdl::cuda
