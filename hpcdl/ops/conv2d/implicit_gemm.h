#pragma once
// Our own kernels behind cuda::conv: implicit GEMM for every shape, stride, dilation, address and mix of types.

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

/// Throws where pixels or terms cannot be counted in 29 bits.
void implicit_gemm(Stream& s, const Conv& c);
/// Both of one convolution.
void implicit_gemm_gradients(Stream& s, const Conv& data, const Conv& weight);

// One file each. Where copies that were padded are read: of x and w, then c has their channels and dw fewer, or of w
// alone, then dx has those of c.
void implicit_gemm_forward(Stream& s, const Conv& c);
void implicit_gemm_data(Stream& s, const Conv& c, std::int64_t padded);
void implicit_gemm_weight(Stream& s, const Conv& c, std::int64_t inputs);
/// The same by wgmma; false where its operands do not fit: GPUs other than Hopper, f32, few channels.
bool tile_weight(Stream& s, const Conv& c);

/// Images whose channels fill no 16 bytes (few_channels.h), on tensor cores; dx on Hopper. False where c is not such.
bool few_forward(Stream& s, const Conv& c);
bool narrow_backward_data(Stream& s, const Conv& c);
bool few_weight(Stream& s, const Conv& c);
/// y on the plain cores, while terms are few; false where c is not such.
bool few_channels(Stream& s, const Conv& c);

// Of a stream's workspace: copies of weights, padded copies of weights, padded copies of images, shares of sums.
// cuDNN's scratch lies above the first.
inline constexpr std::size_t kConvWeightBytes = std::size_t{16} << 20, kConvPaddedWeight = kConvWeightBytes,
                             kConvPaddedImages = std::size_t{20} << 20, kConvShares = std::size_t{44} << 20;

/// c with a f32 weight beside 16-bit images copied to their type, if there is room; the kernels read either.
Conv with_weight_copied(Stream& s, const Conv& c);

/// Where shares of f32 sums go once they are added, in order, and how they lie: rows of `from_columns`, of which the
/// first `columns` count.
struct ConvSums {
  const Conv& c;
  std::int64_t rows, columns, from_columns;
  std::int64_t size() const { return rows * from_columns; }
};
float* conv_parts(const Stream& s);
/// Shares for which there is room.
std::int64_t conv_parts_room(const ConvSums& sums);
void add_conv_shares(Stream& s, const ConvSums& sums, int shares);

}  // namespace hpcdl::cuda
