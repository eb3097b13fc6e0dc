#pragma once
// The operands of adapter_rows as its kernels read them. Grids depend on shapes alone, so that a captured graph holds for
// any choice.

#include <cstdint>

#include "hpcdl/cuda/element.cuh"

namespace hpcdl::cuda {

/// Rows [begin, begin + rank) of all matrices A. Without a number: none.
struct Adapter {
  int number = -1, begin = 0, rank = 0;
  __device__ explicit operator bool() const { return number >= 0; }
};

struct AdapterOperands {
  void *y, *low;  // low: (rows, ranks); a row uses the columns of its adapter
  const void *base, *x, *a, *b;
  const std::int32_t *chosen, *ends;
  const float *scales, *shifts;  // shifts: null if absent
  std::int64_t y_stride, base_stride, x_stride;
  int rows, inputs, outputs, ranks, adapters;

  template <class T> __device__ static T* row(void* p, std::int64_t stride, std::int64_t r) {
    return static_cast<T*>(p) + r * stride;
  }
  template <class T> __device__ static const T* row(const void* p, std::int64_t stride, std::int64_t r) {
    return static_cast<const T*>(p) + r * stride;
  }
  __device__ Adapter adapter(int number) const {
    if (number < 0 || number >= adapters) return {};
    const int begin = number > 0 ? ends[number - 1] : 0;
    return {number, begin, ends[number] - begin};
  }
  __device__ Adapter adapter_of(std::int64_t r) const { return adapter(chosen[r]); }
  __device__ float shift(const Adapter& of, int col) const {
    return shifts ? shifts[std::int64_t{of.number} * outputs + col] : 0.0f;
  }
};

}  // namespace hpcdl::cuda
