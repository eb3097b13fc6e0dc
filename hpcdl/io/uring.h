#pragma once
// io_uring(7), by its system calls: reads and writes on which the kernel works while the thread goes on.

#include <cstdint>
#include <functional>
#include <optional>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

class Uring {
 public:
  /// For up to `depth` requests at a time. Nothing if the kernel refuses: one before 5.6, or a container that forbids it.
  static std::optional<Uring> open(unsigned depth);
  Uring(Uring&& o) noexcept { swap(o); }
  Uring& operator=(Uring&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Uring();

  struct Request {
    bool write = false;
    int fd = -1;
    void* memory = nullptr;
    std::uint32_t bytes = 0;
    std::int64_t offset = 0;  // in the file
  };
  /// Queues a request; `tag` names it in wait(). The caller counts: at most `depth` may be unfinished.
  void queue(const Request& request, std::uint64_t tag);
  /// Submits what is queued, waits until a request has ended, and calls f(tag, bytes moved or -errno) for each that
  /// has.
  void wait(const std::function<void(std::uint64_t tag, std::int64_t result)>& f);

 private:
  struct Memory {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
  };
  Uring() = default;
  void swap(Uring& o) noexcept;
  std::uint32_t& word(std::uint32_t offset) const { return *reinterpret_cast<std::uint32_t*>(rings_.at + offset); }

  Fd fd_;
  Memory rings_, entries_;
  std::uint32_t sq_tail_ = 0, sq_mask_ = 0, sq_array_ = 0, cq_head_ = 0, cq_tail_ = 0, cq_mask_ = 0, cqes_ = 0;
  std::uint32_t queued_ = 0;  // and not submitted
};

}  // namespace hpcdl::io
