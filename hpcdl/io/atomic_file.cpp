#include "hpcdl/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

bool same_file(int fd, const fs::path& path) {
  struct stat a{}, b{};
  return ::fstat(fd, &a) == 0 && ::stat(path.c_str(), &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/// Creates the aside file and locks it. Whoever held it before may have renamed it away while we waited to open it,
/// in which case we hold somebody's finished file and must try again.
Fd open_aside(const fs::path& aside, const fs::path& path) {
  for (;;) {
    Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!fd) fail_file(path, "create", errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("io", "{}: another process is writing this file now; wait for it or choose another name", path.string());
    if (!same_file(fd.get(), aside)) continue;
    if (::ftruncate(fd.get(), 0) != 0) fail_file(path, "empty", errno);
    return fd;
  }
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path)
    : path_(path), aside_(path.parent_path() / (".tmp-" + path.filename().string())), fd_(open_aside(aside_, path)) {}

AtomicFile::~AtomicFile() {
  if (!committed_ && fd_) ::unlink(aside_.c_str());
}

void AtomicFile::reserve(std::int64_t bytes) {
  if (bytes <= 0 || ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    fail_file(path_, fmt::format("reserve {} bytes for", bytes), errno);
}

void AtomicFile::append(std::span<const std::byte> bytes) { write_at(end_, bytes); }

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), std::size_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path_, fmt::format("write {} bytes at offset {} of", bytes.size(), offset), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += n;
    end_ = std::max(end_, offset);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) fail_file(path_, "sync", errno);  // EINVAL: not supported here
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_file(path_, "rename into place", errno);
  committed_ = true;
  sync_folder(path_.parent_path());
}

void write_file_atomic(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.commit();
}

}  // namespace hpcdl::io
