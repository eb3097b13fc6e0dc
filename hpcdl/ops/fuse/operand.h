#pragma once
// Operands of fused kernels: a base and a row stride, nothing else, so that a functor holding some of them can be
// passed to a GPU by value. The element type is the kernel's.

#include "hpcdl/core/device_macros.h"
#include "hpcdl/core/tensor.h"

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

/// Where a result goes: overwrites, or adds to what is there.
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
