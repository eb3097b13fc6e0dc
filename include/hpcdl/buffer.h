#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hpcdl/tensor.h"

namespace hpcdl {

/// Owner of one block of zeroed memory, on the host or on a GPU. Host blocks of 2 MiB and more are 2 MiB-aligned and
/// ask for huge pages: first touch of 4 KiB pages is several times slower than the kernels that fill them. Smaller
/// blocks are 64-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  /// Throws Error if the memory cannot be allocated.
  explicit Buffer(std::int64_t bytes, Device device = {});
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(mapped_, o.mapped_);
    std::swap(device_, o.device_);
  }
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0, mapped_ = 0;
  Device device_;
};

/// A tensor together with its memory.
struct OwnedTensor {
  Buffer buffer;
  Tensor tensor;

  OwnedTensor() = default;
  explicit OwnedTensor(Spec spec, Device device = {})
      : buffer(spec.bytes(), device), tensor(buffer.data(), spec, device) {}
};

}  // namespace hpcdl
