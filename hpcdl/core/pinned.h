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

/// Writes to every page of host memory without changing it, so that later writes need not wait for the system to hand
/// out pages. Without effect on a system that cannot.
void populate(std::byte* data, std::int64_t bytes);

/// Page-locks host memory of another owner, which must outlive this, as Pinned does with its own. Without effect if the
/// device is a CPU, or if the system does not let this process lock as much: then copies are slower.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(std::byte* data, std::int64_t bytes, Device device);
  PinnedRange(PinnedRange&& o) noexcept : data_(std::exchange(o.data_, nullptr)) {}
  PinnedRange& operator=(PinnedRange&& o) noexcept {
    std::swap(data_, o.data_);
    return *this;
  }
  ~PinnedRange();

  /// Whether the memory is locked.
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;  // null: not locked
};

/// Queues a copy of `from` to pinned memory, complete after the stream is synchronized. On a CPU it is immediate.
void copy_to_pinned(const Stream& s, void* to, const View& from);

}  // namespace hpcdl
