#pragma once
// Operands of fused kernels: only a base and a row stride, so that a functor holding several of them can be passed to a
// GPU by value. The kernel knows the element type.

#include "hpcdl/core/device_macros.h"
#include "hpcdl/tensor.h"

namespace hpcdl::fuse {

struct In {
  const void* data = nullptr;
  std::int64_t stride = 0;

  In() = default;
  In(const View& x) : data(x.data()), stride(x.row_stride()) {}
  template <class T> HPCDL_HOST_DEVICE const T* at(std::int64_t row, std::int64_t col) const {
    return static_cast<const T*>(data) + row * stride + col;
  }
};

/// The destination of a result: overwritten or accumulated.
struct Out {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool accumulate = false;

  Out() = default;
  Out(const Tensor& y) : data(y.data()), stride(y.row_stride()) {}
  Out(const Grad& y) : data(y.data()), stride(y.row_stride()), accumulate(y.accumulate()) {}
  HPCDL_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  template <class T> HPCDL_HOST_DEVICE T* at(std::int64_t row, std::int64_t col) const {
    return static_cast<T*>(data) + row * stride + col;
  }
};

}  // namespace hpcdl::fuse
