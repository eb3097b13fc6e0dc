#pragma once
// Dozens of rows of 16-bit activations on tensor cores: weights are read once for each 64 rows of x, and
// decoded in registers.

#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::cuda {

/// Whether these kernels multiply such an x: of 16 bits, on a GPU with enough shared memory, with operands at multiples of 16
/// bytes, as programs place them.
bool quant_tiles_can(const Stream& s, const View& x, const QuantMatrix& w);
/// x is as rotated weights multiply it (rotate_rows.h), if these are. `shape`: which of the kernels' kTileShapes shapes of blocks, for measurements; -1: the one that is expected to be fastest.
void quant_tiles(Stream& s, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights,
                 int shape = -1);
inline constexpr int kTileShapes = 6;  // the first for one row of x alone, the others for any number

}  // namespace hpcdl::cuda
