#pragma once

#include <cstdint>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// A file that is read, and written if it is new, past the page cache (O_DIRECT), so that it takes no memory and costs
/// no copy. Where its file system refuses that, the cache is used.
class DirectFile {
 public:
  /// Offsets, lengths and addresses of reads and writes are multiples of this.
  static constexpr std::int64_t kAlign = 4096;

  /// Throws Error if the file cannot be opened. Without `try_direct` it is read through the cache.
  explicit DirectFile(const fs::path& path, bool try_direct = true);
  /// A new file in `folder` for reading and writing, without contents so far. It has no name: it is gone when this is,
  /// however the process ends. Throws Error if it cannot be made.
  static DirectFile unnamed(const fs::path& folder, bool try_direct = true);
  /// Its room on the disk is reserved and reads as zeros. Throws Error if it cannot be had.
  void reserve(std::int64_t bytes);

  int fd() const { return fd_.get(); }
  std::int64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  bool direct() const { return direct_; }

 private:
  DirectFile() = default;
  void try_direct(int flags);

  fs::path path_;
  Fd fd_;
  std::int64_t size_ = 0;
  bool direct_ = false;
};

}  // namespace hpcdl::io
