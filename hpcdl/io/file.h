#pragma once
// File descriptors with one owner, whole-file reads, and system errors in words.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hpcdl::io {

namespace fs = std::filesystem;

/// Throws Error "[io] PATH: cannot DOING: reason; what to do" for an errno value.
[[noreturn]] void fail_file(const fs::path& path, std::string_view doing, int error);

/// Owner of a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Opens a regular file for reading; throws Error when it is missing, a folder, or not readable.
Fd open_for_reading(const fs::path& path);
std::int64_t file_size(const Fd& fd, const fs::path& path);

/// The whole file. Throws Error if it is larger than `limit` bytes.
std::string read_file(const fs::path& path, std::int64_t limit = std::int64_t{1} << 30);

/// The contents of a folder, sorted; `deep` includes sub-folders. Throws Error if it cannot be read.
std::vector<fs::path> list_folder(const fs::path& path, bool deep = false);
/// Creates the folder and its parents.
void make_folder(const fs::path& path);
/// Makes renames and new names in a folder survive a power cut.
void sync_folder(const fs::path& path);
void sync_file(const fs::path& path);
/// rename(2) followed by a sync of the folder that holds `to`.
void rename_durably(const fs::path& from, const fs::path& to);

}  // namespace hpcdl::io
