#include "hpcdl/io/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>

namespace hpcdl::io {
namespace {

/// Some file systems open such files and refuse to read them.
bool reads(const Fd& fd) {
  alignas(DirectFile::kAlign) std::byte block[DirectFile::kAlign];
  return ::pread(fd.get(), block, sizeof block, 0) >= 0;
}

}  // namespace

DirectFile::DirectFile(const fs::path& path, bool try_direct) : path_(path), fd_(open_for_reading(path)) {
  size_ = file_size(fd_, path);
  if (!try_direct) return;
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  direct_ = fd && reads(fd);
  if (direct_) fd_ = std::move(fd);
}

}  // namespace hpcdl::io
