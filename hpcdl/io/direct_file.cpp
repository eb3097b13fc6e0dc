#include "hpcdl/io/direct_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

namespace hpcdl::io {
namespace {

/// Some file systems open such files and refuse to read them.
bool reads(const Fd& fd) {
  alignas(DirectFile::kAlign) std::byte block[DirectFile::kAlign];
  return ::pread(fd.get(), block, sizeof block, 0) >= 0;
}

/// For file systems that cannot reserve room.
int write_zeros(const Fd& fd, std::int64_t bytes) {
  const std::vector<char> zeros(std::size_t{1} << 20);
  for (std::int64_t at = 0; at < bytes;) {
    const auto n = ::pwrite(fd.get(), zeros.data(), std::min(zeros.size(), static_cast<std::size_t>(bytes - at)), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    at += n;
  }
  return ::fsync(fd.get()) == 0 ? 0 : errno;
}

}  // namespace

DirectFile::DirectFile(const fs::path& path, bool direct) : path_(path), fd_(open_for_reading(path)) {
  size_ = file_size(fd_, path);
  if (direct) try_direct(O_RDONLY);
}

void DirectFile::try_direct(int flags) {
  Fd fd(::open(path_.c_str(), flags | O_CLOEXEC | O_DIRECT));
  direct_ = fd && reads(fd);
  if (direct_) fd_ = std::move(fd);
}

DirectFile DirectFile::unnamed(const fs::path& folder, bool direct) {
  DirectFile file;
  std::string pattern = (folder / ".hpcdl-XXXXXX").string();
  file.fd_ = Fd(::mkostemp(pattern.data(), O_CLOEXEC));
  if (!file.fd_) fail_file(folder, "make a file in", errno);
  file.path_ = pattern;
  if (direct) file.try_direct(O_RDWR);
  ::unlink(pattern.c_str());
  return file;
}

void DirectFile::reserve(std::int64_t bytes) {
  int error = 0;
  while ((error = ::fallocate(fd_.get(), 0, 0, bytes) == 0 ? 0 : errno) == EINTR) continue;
  if (error == EOPNOTSUPP) error = write_zeros(fd_, bytes);
  if (error != 0) fail_file(path_.parent_path(), "reserve room in", error);
  size_ = bytes;
}

}  // namespace hpcdl::io
