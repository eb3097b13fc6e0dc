#pragma once
// Few rows of activations that tensor cores do not take: in f32, or on a GPU before Hopper.

#include "hpcdl/ops/quant_linear/quant_linear.h"

namespace hpcdl::cuda {

/// Whether these kernels multiply so many rows with a matrix that lies there.
bool quant_few_rows_can(const View& x, const QuantMatrix& w);
/// x is as rotated weights multiply it, in f32 (rotate_rows.h), if these are.
void quant_few_rows(Stream&, Tensor y, View x, const QuantMatrix& w, View bias, View residual);

}  // namespace hpcdl::cuda
