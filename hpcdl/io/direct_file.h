#pragma once

#include <cstdint>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// A file that is read past the page cache (O_DIRECT), so that it takes no memory and costs no copy. Where its file
/// system refuses that, it is read through the cache.
class DirectFile {
 public:
  /// Offsets, lengths and addresses of reads are multiples of this.
  static constexpr std::int64_t kAlign = 4096;

  /// Throws Error if the file cannot be opened. Without `try_direct` it is read through the cache.
  explicit DirectFile(const fs::path& path, bool try_direct = true);

  int fd() const { return fd_.get(); }
  std::int64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  bool direct() const { return direct_; }

 private:
  fs::path path_;
  Fd fd_;
  std::int64_t size_ = 0;
  bool direct_ = false;
};

}  // namespace hpcdl::io
