#include "hpcdl/core/unfinished.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hpcdl {
namespace {

enum State : int { kFree, kTaken, kListed, kBeingRemoved };

struct Slot {
  std::atomic<int> state{kFree};
  char path[PATH_MAX];
};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

constexpr int kSlots = 128;
Slot slots[kSlots];  // pages that no path is written to take no memory

/// As the kernel writes it: getdents64(2). readdir(3) allocates, which a signal handler must not.
struct Entry {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[];
};

constexpr int kDeepest = 8;  // folders within each other

void remove_at(int folder, const char* name, int depth) noexcept {
  if (unlinkat(folder, name, 0) == 0 || depth > kDeepest) return;
  const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  alignas(Entry) char block[2048];
  for (bool any = true; any;) {  // removing while reading may skip some: read again until a pass finds none
    any = false;
    lseek(fd, 0, SEEK_SET);
    for (long n; (n = syscall(SYS_getdents64, fd, block, sizeof block)) > 0;)
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const Entry*>(block + at);
        at += entry->length;
        if (std::strcmp(entry->name, ".") == 0 || std::strcmp(entry->name, "..") == 0) continue;
        remove_at(fd, entry->name, depth + 1);
        any = any || faccessat(fd, entry->name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
      }
  }
  close(fd);
  unlinkat(folder, name, AT_REMOVEDIR);
}

}  // namespace

Unfinished::Unfinished(const std::filesystem::path& path) {
  std::error_code error;
  const std::string full = std::filesystem::absolute(path, error).string();  // the process may go to another folder
  if (error || full.size() >= sizeof Slot::path) return;
  for (int i = 0; i < kSlots; ++i) {
    int expected = kFree;
    if (!slots[i].state.compare_exchange_strong(expected, kTaken)) continue;
    std::memcpy(slots[i].path, full.c_str(), full.size() + 1);
    slots[i].state.store(kListed);
    slot_ = i;
    return;
  }
}

Unfinished::Unfinished(Unfinished&& o) noexcept : slot_(std::exchange(o.slot_, -1)) {}

Unfinished& Unfinished::operator=(Unfinished&& o) noexcept {
  std::swap(slot_, o.slot_);
  return *this;
}

Unfinished::~Unfinished() {
  if (slot_ < 0) return;
  int expected = kListed;  // what a handler is removing stays its own: the process ends
  slots[slot_].state.compare_exchange_strong(expected, kFree);
}

void remove_unfinished() noexcept {
  const int before = errno;
  for (auto& slot : slots) {
    int expected = kListed;
    if (slot.state.compare_exchange_strong(expected, kBeingRemoved)) remove_at(AT_FDCWD, slot.path, 0);
  }
  errno = before;
}

}  // namespace hpcdl
