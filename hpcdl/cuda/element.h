#pragma once
// Elements of a tensor whose type is known at run time only (.cu files).

#include "hpcdl/core/tensor.h"
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

/// A vector over the columns: weight, bias.
struct Parameter {
  const void* data;
  DType dtype;
  explicit Parameter(const View& v) : data(v.data()), dtype(v.dtype()) {}
  bool whole() const { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
  /// Elements [from, to) of the N at column `col`; the others are 0. kWhole: all or none of them.
  template <int N, bool kWhole = false> __device__ Lanes<N> load(std::int64_t col, int from, int to) const {
    if constexpr (kWhole) {
      if (to <= 0) return Lanes<N>(0.0f);
      if (dtype == DType::f32) return widen(read_aligned<N>(static_cast<const float*>(data) + col));
      if (dtype == DType::bf16) return widen(read_aligned<N>(static_cast<const bf16*>(data) + col));
      return widen(read_aligned<N>(static_cast<const f16*>(data) + col));
    }
    if (dtype == DType::f32) return widen(read<N>(static_cast<const float*>(data) + col, from, to, 0.0f));
    if (dtype == DType::bf16) return widen(read<N>(static_cast<const bf16*>(data) + col, from, to, bf16{}));
    return widen(read<N>(static_cast<const f16*>(data) + col, from, to, f16{}));
  }
};

}  // namespace hpcdl::cuda
