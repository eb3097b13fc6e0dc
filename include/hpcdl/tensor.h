#pragma once
// View and Tensor: the addresses of elements and how to read them. Neither owns memory (see buffer.h).
// A View may be read, a Tensor may be written. Strides are in elements; the last dim is dense in every tensor an op
// accepts unless that op says otherwise, so kernels think in rows: rows() x cols() at row_stride().

#include <cstddef>

#include "hpcdl/device.h"
#include "hpcdl/dtype.h"
#include "hpcdl/shape.h"

namespace hpcdl {

/// Shape and dtype, known before a tensor has memory. A default Spec is "absent" (an optional operand).
struct Spec {
  Shape shape;
  DType dtype = DType::none;

  constexpr std::int64_t size() const { return dtype == DType::none ? 0 : shape.size(); }
  [[gnu::always_inline]] constexpr std::int64_t bytes() const { return size() * dtype_bytes(dtype); }
  constexpr std::int64_t operator[](int i) const { return shape[i]; }
  constexpr explicit operator bool() const { return dtype != DType::none; }
  constexpr bool operator==(const Spec&) const = default;
};

class View {
 public:
  View() = default;
  View(const void* data, Spec spec, Device device = {})
      : data_(const_cast<void*>(data)), spec_(spec), strides_(contiguous_strides(spec.shape)), device_(device) {}
  View(const void* data, Spec spec, Shape strides, Device device)
      : data_(const_cast<void*>(data)), spec_(spec), strides_(strides), device_(device) {}

  explicit operator bool() const { return data_ != nullptr; }
  const void* data() const { return data_; }
  template <class T> const T* ptr() const { return static_cast<const T*>(data_); }

  const Spec& spec() const { return spec_; }
  const Shape& shape() const { return spec_.shape; }
  const Shape& strides() const { return strides_; }
  DType dtype() const { return spec_.dtype; }
  Device device() const { return device_; }
  int rank() const { return spec_.shape.rank(); }
  std::int64_t size() const { return spec_.size(); }
  std::int64_t bytes() const { return spec_.bytes(); }
  std::int64_t operator[](int i) const { return spec_.shape[i]; }

  /// Last dimension (1 for a scalar) and the number of rows above it.
  std::int64_t cols() const { return rank() == 0 ? 1 : spec_.shape[-1]; }
  std::int64_t rows() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank(); ++i) n *= spec_.shape[i];
    return n;
  }
  /// Elements from one row to the next. Precondition: rows_are_uniform().
  std::int64_t row_stride() const { return rank() < 2 ? cols() : strides_[-2]; }

  bool is_contiguous() const {
    std::int64_t n = 1;
    for (int i = rank() - 1; i >= 0; --i) {
      if (spec_.shape[i] != 1 && strides_[i] != n) return false;
      n *= spec_.shape[i];
    }
    return true;
  }
  /// True when all rows lie at one constant distance and each row is dense. Precondition: clean strides (shape.h).
  bool rows_are_uniform() const {
    if (rank() == 0) return true;
    if (strides_[-1] != 1 && spec_.shape[-1] != 1) return false;
    std::int64_t next = row_stride();
    for (int i = rank() - 2; i >= 0; --i) {
      if (spec_.shape[i] == 1) continue;
      if (strides_[i] != next) return false;
      next = strides_[i] * spec_.shape[i];
    }
    return true;
  }

  /// The same elements under another shape. Precondition: contiguous, equal size.
  View reshaped(Shape s) const { return View(data_, Spec{s, dtype()}, contiguous_strides(s), device_); }

 protected:
  void* data_ = nullptr;
  Spec spec_;
  Shape strides_;
  Device device_;
};

class Tensor : public View {
 public:
  Tensor() = default;
  Tensor(void* data, Spec spec, Device device = {}) : View(data, spec, device) {}
  Tensor(void* data, Spec spec, Shape strides, Device device) : View(data, spec, strides, device) {}

  void* data() const { return data_; }
  template <class T> T* ptr() const { return static_cast<T*>(data_); }
  Tensor reshaped(Shape s) const { return Tensor(data_, Spec{s, dtype()}, contiguous_strides(s), device_); }
};

/// How a gradient is written: decided while recording (the first contribution overwrites, later ones add).
enum class Write : std::uint8_t { overwrite, accumulate };

/// A gradient that a backward kernel writes. Null (false) if it is not needed.
class Grad : public Tensor {
 public:
  Grad() = default;
  Grad(Tensor t, Write w) : Tensor(t), write_(w) {}
  Write write() const { return write_; }
  bool accumulate() const { return write_ == Write::accumulate; }

 private:
  Write write_ = Write::overwrite;
};

}  // namespace hpcdl
