#pragma once
// A file that ranks of one host are to map, as one of them tells the others of it.

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
  /// Takes down which file this is. False: errno says why.
  bool identify(int fd) {
    struct stat s{};
    if (fstat(fd, &s) != 0) return false;
    device = s.st_dev, inode = s.st_ino;
    return true;
  }
  /// Its descriptor, or -1. To a rank with processes or a /dev/shm of its own, as containers have them, the path may
  /// be another file, which is not so much as opened.
  int open() const {
    struct stat s{};
    if (std::memchr(path, 0, sizeof path) == nullptr) return -1;  // another rank's word
    if (::stat(path, &s) != 0 || s.st_dev != device || s.st_ino != inode) return -1;
    return ::open(path, O_RDWR | O_CLOEXEC);
  }
};

}  // namespace hpcdl::comm
