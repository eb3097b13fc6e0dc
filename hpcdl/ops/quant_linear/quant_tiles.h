#pragma once
// Up to a few hundred rows of 16-bit activations on tensor cores: weights are read once for each kMostColumns rows of x, and
// decoded in registers.

#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::cuda {

/// Whether these kernels multiply such an x: 16 bits, few enough rows, a GPU with enough shared memory, and operands at
/// multiples of 16 bytes, as programs place them.
bool quant_tiles_can(const Stream& s, const View& x, const QuantMatrix& w);
/// `shape`: which of the kernels' kTileShapes shapes of blocks, for measurements; -1: the one that is expected to be fastest.
void quant_tiles(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, int shape = -1);
inline constexpr int kTileShapes = 6;  // the first for one row of x alone, the others for any number

}  // namespace hpcdl::cuda
