#pragma once
// Identifies a file that ranks of one host map, in a message from one to the others.

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace hpcdl::comm {

struct SharedFile {
  char path[112] = {};
  std::uint64_t device = 0, inode = 0;

  void name(std::string_view at) { path[at.copy(path, sizeof path - 1)] = 0; }
  /// Records which file this is. False: errno says why.
  bool identify(int fd) {
    struct stat s{};
    if (fstat(fd, &s) != 0) return false;
    device = s.st_dev, inode = s.st_ino;
    return true;
  }
  /// Its descriptor, or -1. For a rank with its own process namespace or /dev/shm, as in containers, the path may
  /// be another file, which must not be opened.
  int open() const {
    struct stat s{};
    if (std::memchr(path, 0, sizeof path) == nullptr) return -1;  // the claim of another rank
    if (::stat(path, &s) != 0 || s.st_dev != device || s.st_ino != inode) return -1;
    return ::open(path, O_RDWR | O_CLOEXEC);
  }
};

}  // namespace hpcdl::comm
