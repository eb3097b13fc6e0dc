#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hpcdl/stream.h"

namespace hpcdl {

/// Owner of page-locked host memory, which a GPU's copy engine reads and writes asynchronously and at the
/// speed of the bus; ordinary memory if the device is a CPU. Pinning is slow, so reuse it.
class Pinned {
 public:
  Pinned() = default;
  /// Throws Error if the memory cannot be allocated.
  Pinned(std::int64_t bytes, Device device);
  Pinned(Pinned&& o) noexcept { swap(o); }
  Pinned& operator=(Pinned&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Pinned();

  std::byte* data() const { return data_; }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(Pinned& o) noexcept {
    std::swap(data_, o.data_), std::swap(bytes_, o.bytes_), std::swap(device_, o.device_);
  }
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Device device_;
};

/// Queues a copy of `from` to pinned memory, complete after the stream is synchronized. On a CPU it is immediate.
void copy_to_pinned(const Stream& s, void* to, const View& from);

}  // namespace hpcdl
