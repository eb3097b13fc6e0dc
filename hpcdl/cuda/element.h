#pragma once
// One element of a tensor whose type is known at run time only (.cu files).

#include "hpcdl/cuda/lanes.h"

namespace hpcdl::cuda {

/// p[i] of f32 or bf16.
__device__ inline float fetch(const void* p, DType d, std::int64_t i) {
  return d == DType::bf16 ? widen(static_cast<const bf16*>(p)[i]) : static_cast<const float*>(p)[i];
}

}  // namespace hpcdl::cuda
