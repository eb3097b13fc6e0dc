#include "hpcdl/core/unfinished.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
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

enum Stage : std::int64_t { kFree, kTaken, kListed, kCreated, kFinishing, kBeingRemoved };
constexpr std::int64_t kStages = 8;

/// A stage, and the thread that has set it.
std::int64_t state_of(Stage stage, std::int64_t thread) { return thread * kStages + stage; }
Stage stage_of(std::int64_t state) { return static_cast<Stage>(state % kStages); }
std::int64_t thread_of(std::int64_t state) { return state / kStages; }
std::int64_t this_thread() { return syscall(SYS_gettid); }

struct Slot {
  std::atomic<std::int64_t> state{kFree};
  char path[PATH_MAX];
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "used in a signal handler");

constexpr int kSlots = 128;
Slot slots[kSlots];  // pages without a path use no memory
std::atomic<bool> ending{false};
constexpr int kPatience = 500;  // milliseconds

/// The kernel's format, see getdents64(2): readdir(3) allocates, which a signal handler must not do.
struct Entry {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[];
};

constexpr int kDeepest = 8;  // depth of nested folders
constexpr int kTries = 100;  // passes over a folder, to which other threads may still write

void remove_at(int folder, const char* name, int depth) noexcept;

/// One pass. Removing while reading may skip entries.
void empty(int folder, int depth) noexcept {
  alignas(Entry) char block[2048];
  lseek(folder, 0, SEEK_SET);
  for (long n; (n = syscall(SYS_getdents64, folder, block, sizeof block)) > 0;)
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const Entry*>(block + at);
      at += entry->length;
      if (std::strcmp(entry->name, ".") != 0 && std::strcmp(entry->name, "..") != 0)
        remove_at(folder, entry->name, depth + 1);
    }
}

void remove_at(int folder, const char* name, int depth) noexcept {
  if (unlinkat(folder, name, 0) == 0 || depth > kDeepest) return;
  const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  for (int i = 0; i < kTries; ++i) {
    empty(fd, depth);
    if (unlinkat(folder, name, AT_REMOVEDIR) == 0 || (errno != ENOTEMPTY && errno != EEXIST)) break;
  }
  close(fd);
}

/// The state of a slot after no other thread is about to create or rename its file, or after the waiting time has
/// end.
std::int64_t settled(const Slot& slot, int& patience) noexcept {
  const auto self = this_thread();
  for (;; --patience) {
    const auto state = slot.state.load();
    const auto stage = stage_of(state);
    const bool changes = stage == kTaken || stage == kListed || stage == kFinishing;
    if (!changes || thread_of(state) == self || patience <= 0) return state;
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Unfinished::Unfinished(const std::filesystem::path& path) {
  std::error_code error;
  const std::string full =
      std::filesystem::absolute(path, error).string();  // the process may change its current folder
  if (error || full.size() >= sizeof Slot::path) return;
  const auto self = this_thread();
  for (int i = 0; i < kSlots; ++i) {
    std::int64_t expected = kFree;
    if (!slots[i].state.compare_exchange_strong(expected, state_of(kTaken, self))) continue;
    if (ending.load()) {  // later than the slot was taken: either this thread sees it, or the handler sees the slot
      slots[i].state.store(kFree);
      for (;;) pause();
    }
    std::memcpy(slots[i].path, full.c_str(), full.size() + 1);
    slots[i].state.store(state_of(kListed, self));
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
  auto& state = slots[slot_].state;
  auto now = state.load();
  if (stage_of(now) != kBeingRemoved)
    state.compare_exchange_strong(now, kFree);  // otherwise it stays listed: the process ends
}

void Unfinished::created() noexcept {
  if (slot_ < 0) return;
  auto& state = slots[slot_].state;
  auto now = state.load();
  if (stage_of(now) == kListed) state.compare_exchange_strong(now, kCreated);
}

void Unfinished::finishing() noexcept {
  if (slot_ < 0) return;
  auto& state = slots[slot_].state;
  for (auto now = state.load(); stage_of(now) != kBeingRemoved;)
    if (state.compare_exchange_strong(now, state_of(kFinishing, this_thread()))) return;
  for (;;) pause();
}

void remove_unfinished() noexcept {
  const int before = errno;
  ending.store(true);
  int patience = kPatience;
  for (auto& slot : slots) {
    auto state = settled(slot, patience);
    const auto stage = stage_of(state);
    // A file of another thread that did not finish may have its final name by now.
    const bool ours =
        stage == kListed || stage == kCreated || (stage == kFinishing && thread_of(state) == this_thread());
    if (ours && slot.state.compare_exchange_strong(state, kBeingRemoved)) remove_at(AT_FDCWD, slot.path, 0);
  }
  errno = before;
}

}  // namespace hpcdl
