#include "hpcdl/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

std::string_view advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; the disk is full: free some space or choose another folder";
    case EFBIG: return "; the file would pass the allowed file size (see ulimit -f)";
    case EACCES:
    case EPERM: return "; check the permissions of the file and of its folder";
    case EROFS: return "; the file system is read-only: choose another folder";
    case ENOENT: return "; check the spelling of the path";
    case EMFILE:
    case ENFILE: return "; too many open files (see ulimit -n)";
    default: return "";
  }
}

}  // namespace

void fail_file(const fs::path& path, std::string_view doing, int error) {
  fail("io", "{}: cannot {}: {}{}", path.string(), doing, std::generic_category().message(error), advice(error));
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Fd open_for_reading(const fs::path& path) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang; it changes nothing for regular files.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_file(path, "open for reading", errno);
  struct stat st{};
  if (::fstat(fd.get(), &st) != 0) fail_file(path, "stat", errno);
  require(!S_ISDIR(st.st_mode), "io", "{}: expected a file, found a folder", path.string());
  require(S_ISREG(st.st_mode), "io", "{}: expected a regular file, found a device, pipe or socket", path.string());
  return fd;
}

std::int64_t file_size(const Fd& fd, const fs::path& path) {
  struct stat st{};
  if (::fstat(fd.get(), &st) != 0) fail_file(path, "stat", errno);
  return st.st_size;
}

std::string read_file(const fs::path& path, std::int64_t limit) {
  const Fd fd = open_for_reading(path);
  const std::int64_t size = file_size(fd, path);
  require(size <= limit, "io", "{}: expected at most {} bytes, found {}: is this the right file?", path.string(), limit,
          size);
  std::string text(static_cast<std::size_t>(size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path, "read", errno);
    if (n == 0) break;  // it has shrunk
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

std::vector<fs::path> list_folder(const fs::path& path, bool deep) {
  std::vector<fs::path> out;
  try {
    for (const auto& entry : fs::directory_iterator(path)) {
      out.push_back(entry.path());
      if (!deep || !entry.is_directory()) continue;
      const auto inner = list_folder(entry.path(), true);
      out.insert(out.end(), inner.begin(), inner.end());
    }
  } catch (const fs::filesystem_error& e) {
    fail_file(path, "list this folder", e.code().value());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void make_folder(const fs::path& path) {
  std::error_code code;
  fs::create_directories(path, code);
  std::error_code none;
  require(!code || !fs::is_symlink(path, none) || fs::exists(path, none), "io",
          "{}: expected a folder, found a symbolic link to nothing: remove it, or make what it points to",
          path.string());
  if (code) fail_file(path, "make this folder", code.value());
  require(fs::is_directory(path, code), "io", "{}: expected a folder, found something else", path.string());
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail_file(folder, "open this folder", errno);
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_file(folder, "sync this folder", errno);  // EINVAL: not supported
}

void sync_file(const fs::path& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail_file(path, "open", errno);
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_file(path, "sync", errno);
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_file(to, "rename into place", errno);
  sync_folder(to.parent_path());
}

}  // namespace hpcdl::io
