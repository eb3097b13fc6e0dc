#pragma once
// Dozens to hundreds of rows of bf16 on Hopper: warpgroups decode weights to operands in registers, rounded to bf16.

#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::cuda {

/// How a product is divided: rows of x of a block, and blocks that divide K, which form a cluster.
struct WideShape {
  int cols = 64, splits = 1;
};
inline constexpr int kWideCols[] = {32, 64, 128};
inline constexpr int kMostWideSplits = 2;  // larger clusters leave multiprocessors idle

/// Whether quant_wide() multiplies such an x: bf16, so few rows that x as it is arranged fits into the workspace of the
/// stream, and W at a multiple of 16 bytes.
bool quant_wide_can(const Stream& s, const View& x, const QuantMatrix& w);
/// The shape with the least expected time.
WideShape wide_shape(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k);
/// x is as rotated weights multiply it (rotate_rows.h), if these are.
void quant_wide(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights,
                WideShape shape);

}  // namespace hpcdl::cuda
