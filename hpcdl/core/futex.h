#pragma once
// Sleeping until a word changes. std::atomic::wait yields a few times before it sleeps, and a yield while another
// program computes gives it a whole time slice of the scheduler, milliseconds long.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace hpcdl {

/// Sleeps while `word` holds `value`, until it is woken or, if `at_most` is positive, for that time. May return
/// early: read the word again.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                       std::chrono::nanoseconds at_most = {}) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{.tv_sec = whole.count(), .tv_nsec = (at_most - whole).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, at_most.count() > 0 ? &time : nullptr, nullptr, 0);
}

/// Wakes the one thread that sleeps on `word`.
inline void futex_wake(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace hpcdl
