#pragma once
// Elements of a tensor whose type is known only at run time (.cu files).

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/tensor.h"

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

/// N elements from `shift` on, 0 < shift < N, of the 2 N of two consecutive packs.
template <class T, int N> __device__ Pack<T, N> shifted(const Pack<T, N>& low, const Pack<T, N>& high, int shift) {
  constexpr int kWords = Pack<T, N>::kWords;
  static_assert(kWords == 4);
  unsigned w[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) w[i] = low.w[i], w[kWords + i] = high.w[i];
  const int words = shift * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = words & 2 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = words & 1 ? w[i + 1] : w[i];
  Pack<T, N> r;
  const int bits = shift * static_cast<int>(sizeof(T)) % 4 * 8;
#pragma unroll
  for (int i = 0; i < kWords; ++i) r.w[i] = __funnelshift_r(w[i], w[i + 1], bits);
  return r;
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

/// Elements [from, to) of the N at any column `col` of a vector of `cols`; the others are undefined. Two
/// whole packs are read and combined if they lie inside of it.
template <int N, class T> __device__ Lanes<N> load_odd(const T* data, int col, int from, int to, int cols) {
  const int shift = col & (N - 1), begin = col - shift;
  if (begin + 2 * N > cols || !one_access<N>(data)) return widen(read<N>(data + col, from, to, T{}));
  const Pack<T, N> high = read_aligned<N>(data + begin + N);
  if (shift == 0) return widen(read_aligned<N>(data + begin));
  return widen(shifted(begin < 0 ? Pack<T, N>{} : read_aligned<N>(data + begin), high, shift));
}

}  // namespace hpcdl::cuda
