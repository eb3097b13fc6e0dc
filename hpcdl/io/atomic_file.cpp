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

/// What `path` leads to: a rename would put the file in place of a link, and leave what it points to as it was.
fs::path behind_links(const fs::path& path) {
  std::error_code none;
  const fs::path target = fs::is_symlink(path, none) ? fs::canonical(path, none) : path;
  return target.empty() ? path : target;
}

/// /dev/null and its like are written to as they are: a rename would put a file in their place.
bool is_stream(const fs::path& path) {
  std::error_code none;
  const auto status = fs::status(path, none);
  require(path.has_filename(), "io", "\"{}\": expected the name of a file to write", path.string());
  if (fs::is_directory(status)) fail_file(path, "write", EISDIR);
  return fs::exists(status) && !fs::is_regular_file(status);
}

Fd open_stream(const fs::path& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) fail_file(path, "open for writing", errno);
  return fd;
}

/// A file that is there already may be another process's: it is ours only once it is locked.
bool begins_now(const fs::path& aside) {
  std::error_code none;
  return !aside.empty() && !fs::exists(aside, none);
}

}  // namespace

fs::path aside_of(const fs::path& path) {
  return path.parent_path() / (std::string(kAsidePrefix) + path.filename().string());
}

/// Whoever held it before may have renamed it away while we waited to open it, in which case we hold somebody's
/// finished file and must try again.
Fd open_aside(const fs::path& aside, const fs::path& path) {
  for (;;) {
    Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!fd) fail_file(path, "create", errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("io", "{}: another process is writing it now; wait for that or choose another name", path.string());
    if (!same_file(fd.get(), aside)) continue;
    if (::ftruncate(fd.get(), 0) != 0) fail_file(path, "empty", errno);
    return fd;
  }
}

AtomicFile::AtomicFile(const fs::path& path)
    : path_(behind_links(path)),
      aside_(is_stream(path_) ? fs::path() : aside_of(path_)),
      unfinished_(begins_now(aside_) ? Unfinished(aside_) : Unfinished()),
      fd_(aside_.empty() ? open_stream(path_) : open_aside(aside_, path_)) {
  if (!aside_.empty()) unfinished_ = Unfinished(aside_);
}

AtomicFile::~AtomicFile() {
  if (!committed_ && fd_ && !aside_.empty()) ::unlink(aside_.c_str());
}

void AtomicFile::reserve(std::int64_t bytes) {
  if (bytes <= 0 || ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    fail_file(path_, fmt::format("reserve {} bytes for", bytes), errno);
}

void AtomicFile::append(std::span<const std::byte> bytes) { write_at(end_, bytes); }

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  const bool in_order = aside_.empty() && offset == end_;
  while (!bytes.empty()) {
    const auto part = std::min(bytes.size(), std::size_t{1} << 30);
    const auto n = in_order ? ::write(fd_.get(), bytes.data(), part) : ::pwrite(fd_.get(), bytes.data(), part, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path_, fmt::format("write {} bytes at offset {} of", bytes.size(), offset), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += n;
    end_ = std::max(end_, offset);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) fail_file(path_, "sync", errno);  // EINVAL: not supported here
  if (!aside_.empty()) {
    if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_file(path_, "rename into place", errno);
    unfinished_ = {};
    sync_folder(path_.parent_path());
  }
  committed_ = true;
}

void write_file_atomic(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.commit();
}

}  // namespace hpcdl::io
