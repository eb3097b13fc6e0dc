#include "hpcdl/io/mapped_faults.h"

#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hpcdl::io {
namespace {

enum State : int { kFree, kTaken, kListed };

struct Slot {
  std::atomic<int> state{kFree};
  std::atomic<std::uintptr_t> begin{0};
  std::size_t size = 0;
  int fd = -1;
  char path[PATH_MAX];
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::uintptr_t>::is_always_lock_free,
              "used in a signal handler");

constexpr int kSlots = 1024;
Slot slots[kSlots];  // pages without a path use no memory

std::atomic<bool> ending{false};
int exit_code_of_faults = 1;
void (*last_thing)() noexcept = nullptr;

const Slot* slot_of(std::uintptr_t address) noexcept {
  for (const auto& slot : slots)
    if (slot.state.load() == kListed && address - slot.begin.load() < slot.size) return &slot;
  return nullptr;
}

/// One line, built without an allocation.
class Line {
 public:
  Line& operator<<(std::string_view text) noexcept {
    const std::size_t n = std::min(text.size(), sizeof text_ - size_);
    std::memcpy(text_ + size_, text.data(), n);
    size_ += n;
    return *this;
  }
  Line& operator<<(std::uint64_t number) noexcept {
    size_ = static_cast<std::size_t>(std::to_chars(text_ + size_, text_ + sizeof text_, number).ptr - text_);
    return *this;
  }
  void write_to(int fd) const noexcept {
    for (std::size_t at = 0; at < size_;) {
      const auto n = ::write(fd, text_ + at, size_ - at);
      if (n <= 0) return;
      at += static_cast<std::size_t>(n);
    }
  }

 private:
  char text_[PATH_MAX + 512];
  std::size_t size_ = 0;
};

void explain(const Slot& slot) noexcept {
  Line line;
  line << "hpcdl: [io] " << std::string_view(slot.path);
  struct stat now{};
  if (::fstat(slot.fd, &now) == 0 && static_cast<std::uint64_t>(now.st_size) < slot.size)
    line << ": was cut short while it was in use: it had " << std::uint64_t{slot.size} << " bytes and has "
         << static_cast<std::uint64_t>(now.st_size)
         << " now; to change a file, write another one and rename it into place\n";
  else line << ": can no longer be read: its disk or its network file system has failed\n";
  line.write_to(STDERR_FILENO);
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const Slot* slot = info->si_code > 0 ? slot_of(reinterpret_cast<std::uintptr_t>(info->si_addr)) : nullptr;
  if (!slot) {
    ::signal(signal, SIG_DFL);  // the access is repeated, and ends the process by the default action
    if (info->si_code <= 0) ::raise(signal);
    return;
  }
  if (ending.exchange(true))  // another thread is printing the message
    for (;;) ::pause();
  if (last_thing) last_thing();
  explain(*slot);
  ::_exit(exit_code_of_faults);
}

}  // namespace

void list_mapping(const std::byte* begin, std::size_t size, int fd, const fs::path& path) noexcept {
  const auto& name = path.native();
  for (auto& slot : slots) {
    int expected = kFree;
    if (!slot.state.compare_exchange_strong(expected, kTaken)) continue;
    const std::size_t n = std::min(name.size(), sizeof slot.path - 1);
    std::memcpy(slot.path, name.data(), n);
    slot.path[n] = '\0';
    slot.begin = reinterpret_cast<std::uintptr_t>(begin), slot.size = size, slot.fd = fd;
    slot.state = kListed;
    return;
  }
}

void forget_mapping(const std::byte* begin) noexcept {
  for (auto& slot : slots)
    if (slot.state.load() == kListed && slot.begin.load() == reinterpret_cast<std::uintptr_t>(begin)) {
      slot.state = kFree;
      return;
    }
}

void explain_mapped_faults(int code, void (*before_exit)() noexcept) {
  exit_code_of_faults = code, last_thing = before_exit;
  struct sigaction action{};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  action.sa_sigaction = on_bus_error;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace hpcdl::io
