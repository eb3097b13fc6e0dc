#pragma once
// cuBLASLt as a backend of cuda::gemm: loaded at run time where it is installed, so that nothing links to it.

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// The number of the library's choices that are considered.
inline constexpr int kCublasLtChoices = 16;

/// The f32 factors of A and B, 8-bit floats, in device memory: one each, or one for each row of A and column of B.
struct LtScales {
  const float *a = nullptr, *b = nullptr;
  bool rows = false;
};

/// True if the library is present and has more than `choice` ways to compute g including its epilogue; its first choice
/// is number 0. The answer is cached per product.
bool fits_cublas_lt(Stream& s, const Gemm& g, int choice = 0, const LtScales* scales = nullptr);
/// Computes g, for which fits_cublas_lt() holds. `workspace` of `bytes` bytes is available for it.
void run_cublas_lt(Stream& s, const Gemm& g, void* workspace, std::size_t bytes, int choice = 0,
                   const LtScales* scales = nullptr);

/// The workspace that fits_cublas_lt() assumes.
inline constexpr std::size_t kCublasLtBytes = std::size_t{32} << 20;

}  // namespace hpcdl::cuda
