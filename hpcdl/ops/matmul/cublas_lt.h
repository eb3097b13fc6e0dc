#pragma once
// cuBLASLt behind cuda::gemm: opened at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// True when the library is there and has a way to compute g with all that follows its sums. What it said is remembered
/// per product.
bool fits_cublas_lt(Stream& s, const Gemm& g);
/// g, which fits. `workspace` of `bytes` is free for it.
void run_cublas_lt(Stream& s, const Gemm& g, void* workspace, std::size_t bytes);

/// What fits_cublas_lt() offers it.
inline constexpr std::size_t kCublasLtBytes = std::size_t{32} << 20;

}  // namespace hpcdl::cuda
