#pragma once

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// gemm() where a row of D has the bits that it has alone (Numerics::row_invariant), however many rows there are.
void row_invariant_gemm(Stream& s, const Gemm& g);

}  // namespace hpcdl::cuda
