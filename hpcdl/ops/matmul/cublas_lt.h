#pragma once
// cuBLASLt as a backend of cuda::gemm: loaded at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// True if the library is present and can compute g including its epilogue. The answer is cached per product.
bool fits_cublas_lt(Stream& s, const Gemm& g);
/// Computes g, for which fits_cublas_lt() holds. `workspace` of `bytes` bytes is available for it.
void run_cublas_lt(Stream& s, const Gemm& g, void* workspace, std::size_t bytes);

/// The workspace that fits_cublas_lt() assumes.
inline constexpr std::size_t kCublasLtBytes = std::size_t{32} << 20;

}  // namespace hpcdl::cuda
