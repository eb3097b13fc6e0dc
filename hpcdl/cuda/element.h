#pragma once
// One element of a tensor whose type is known at run time only (.cu files).

#include "hpcdl/cuda/lanes.h"

namespace hpcdl::cuda {

/// p[i] of f32, bf16 or f16.
__device__ inline float fetch(const void* p, DType d, std::int64_t i) {
  if (d == DType::f16) return widen(static_cast<const f16*>(p)[i]);
  return d == DType::bf16 ? widen(static_cast<const bf16*>(p)[i]) : static_cast<const float*>(p)[i];
}
/// p[i] = v.
__device__ inline void put(void* p, DType d, std::int64_t i, float v) {
  if (d == DType::bf16) static_cast<bf16*>(p)[i] = narrow<bf16>(v);
  else if (d == DType::f16) static_cast<f16*>(p)[i] = narrow<f16>(v);
  else static_cast<float*>(p)[i] = v;
}

}  // namespace hpcdl::cuda
