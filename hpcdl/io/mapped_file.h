#pragma once
// A file as memory. Pages are read when first touched and can be released at any time, so a model may be larger than
// the memory of the machine.

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// Reads and maps a range of a mapped file from a background thread, in large chunks and in order, so that code that
/// computes on the range finds pages in memory. Destruction stops it. Must not outlive the file.
class Prefetch {
 public:
  Prefetch() = default;
  Prefetch(Prefetch&&) = default;
  Prefetch& operator=(Prefetch&&) = default;
  /// Blocks until the range has been read.
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  friend class MappedFile;
  std::jthread thread_;
};

/// A whole file mapped read-only and private: nothing done to the memory can change the file, and a stray write faults.
/// Another process that truncates the file while it is mapped makes later reads fail with SIGBUS (mmap(2)); replace
/// files by rename (atomic_file.h), never in place.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error when the file cannot be opened or mapped. An empty file maps to size 0.
  explicit MappedFile(const fs::path& path);
  MappedFile(MappedFile&& o) noexcept { swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    swap(o);
    return *this;
  }
  ~MappedFile();

  const std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  const fs::path& path() const { return path_; }

  /// Starts reading [offset, offset + bytes) in the background, at disk speed; bytes < 0 means to the end.
  [[nodiscard]] Prefetch prefetch(std::int64_t offset = 0, std::int64_t bytes = -1) const;
  /// Releases pages of the range (only whole pages inside it); the next access reads them again.
  void drop(std::int64_t offset = 0, std::int64_t bytes = -1) const;
  /// Like drop, and also asks the kernel to drop its cached copy: for measuring cold reads.
  void evict() const;
  /// Bytes of the file that are in memory, counting whole pages (mincore(2)).
  std::int64_t resident_bytes() const;

 private:
  void swap(MappedFile& o) noexcept;

  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  fs::path path_;
  Fd fd_;
};

}  // namespace hpcdl::io
