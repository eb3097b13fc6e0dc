#include "hpcdl/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

bool same_file(int fd, const fs::path& path) {
  struct stat a{}, b{};
  return ::fstat(fd, &a) == 0 && ::stat(path.c_str(), &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/// Resolves links: a rename would replace a link, and leave the file that it points to unchanged.
fs::path behind_links(const fs::path& path) {
  std::error_code none;
  const fs::path target = fs::is_symlink(path, none) ? fs::canonical(path, none) : path;
  return target.empty() ? path : target;
}

/// Devices such as /dev/null are written directly: a rename would replace them by a file.
bool is_stream(const fs::path& path) {
  std::error_code none;
  const auto status = fs::status(path, none);
  require(path.has_filename(), "io", "\"{}\": expected the name of a file to write", path.string());
  if (fs::is_directory(status)) fail_file(path, "write", EISDIR);
  return fs::exists(status) && !fs::is_regular_file(status);
}

Aside open_stream(const fs::path& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) fail_file(path, "open for writing", errno);
  return {std::move(fd), {}};
}

}  // namespace

fs::path aside_of(const fs::path& path) {
  return path.parent_path() / (std::string(kAsidePrefix) + path.filename().string());
}

/// The process that held the lock may have renamed the file while this one opened it: then this one has a finished
/// file, and tries again.
Aside open_aside(const fs::path& aside, const fs::path& path) {
  for (;;) {
    std::error_code none;
    const bool begins = !fs::exists(aside, none);  // until it is locked, the file may belong to another process
    Unfinished unfinished = begins ? Unfinished(aside) : Unfinished();
    Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!fd) fail_file(path, "create", errno);
    unfinished.created();
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("io", "{}: another process is writing it now; wait for that or choose another name", path.string());
    if (!same_file(fd.get(), aside)) continue;
    if (!begins) unfinished = Unfinished(aside), unfinished.created();
    if (::ftruncate(fd.get(), 0) != 0) fail_file(path, "empty", errno);
    return {std::move(fd), std::move(unfinished)};
  }
}

AtomicFile::AtomicFile(const fs::path& path)
    : path_(behind_links(path)),
      aside_(is_stream(path_) ? fs::path() : aside_of(path_)),
      file_(aside_.empty() ? open_stream(path_) : open_aside(aside_, path_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_ && file_.fd && !aside_.empty()) ::unlink(aside_.c_str());
}

void AtomicFile::reserve(std::int64_t bytes) {
  if (bytes <= 0 || ::fallocate(file_.fd.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    fail_file(path_, fmt::format("reserve {} bytes for", bytes), errno);
}

void AtomicFile::append(std::span<const std::byte> bytes) { write_at(end_, bytes); }

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  const bool in_order = aside_.empty() && offset == end_;
  while (!bytes.empty()) {
    const auto part = std::min(bytes.size(), std::size_t{1} << 30);
    const auto n =
        in_order ? ::write(file_.fd.get(), bytes.data(), part) : ::pwrite(file_.fd.get(), bytes.data(), part, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path_, fmt::format("write {} bytes at offset {} of", bytes.size(), offset), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += n;
    end_ = std::max(end_, offset);
  }
}

void AtomicFile::commit() {
  if (::fsync(file_.fd.get()) != 0 && errno != EINVAL) fail_file(path_, "sync", errno);  // EINVAL: not supported here
  if (!aside_.empty()) {
    file_.unfinished.finishing();
    if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_file(path_, "rename into place", errno);
    file_.unfinished = {};
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
