#include "hpcdl/train/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace hpcdl::train {

namespace {

std::atomic<int> received{0};
std::atomic<std::int64_t> received_at{0};  // milliseconds of the clock that counts up; 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free,
              "used in a signal handler");

constexpr int kSignals[] = {SIGTERM, SIGUSR1, SIGINT};
struct sigaction before[3];
bool installed[3];
std::atomic<std::int64_t> stop_at{INT64_MAX};  // Unix seconds
int alive = 0;                                 // of StopSignals
std::mutex alive_mutex;

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// When to stop in a job that ends then: a minute before, but in a short job no earlier than after nine tenths of what
/// is left.
std::int64_t stop_before(std::string_view job_end) {
  std::int64_t end = 0;
  const auto [rest, error] = std::from_chars(job_end.data(), job_end.data() + job_end.size(), end);
  const auto left = end - unix_seconds();
  if (error != std::errc() || rest != job_end.data() + job_end.size() || left <= 0) return INT64_MAX;
  return end - std::min<std::int64_t>(60, (left + 9) / 10);
}

/// The second signal ends the process, unless it is the same asking.
void handle(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t at = now.tv_sec * 1000 + now.tv_nsec / 1'000'000 + 1;
  std::int64_t first = 0;
  if (received_at.compare_exchange_strong(first, at)) return received.store(signal);
  if (received.load() == signal && at - first < kSameAsking.count()) return;
  struct sigaction plain{};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
  raise(signal);  // met when this handler is left
}

}  // namespace

StopSignals::StopSignals(bool on_interrupt, const char* job_end) {
  const std::lock_guard lock(alive_mutex);
  if (alive++ > 0) return;
  received.store(0), received_at.store(0);
  stop_at.store(job_end ? stop_before(job_end) : INT64_MAX);
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 3; ++i) {
    installed[i] = kSignals[i] != SIGINT || on_interrupt;
    if (installed[i]) sigaction(kSignals[i], &action, &before[i]);
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(alive_mutex);
  if (--alive > 0) return;
  for (int i = 0; i < 3; ++i)
    if (installed[i]) sigaction(kSignals[i], &before[i], nullptr);
}

int StopSignals::requested() {
  const int signal = received.load();
  return signal == 0 && stop_at.load() != INT64_MAX && unix_seconds() >= stop_at.load() ? SIGTERM : signal;
}

}  // namespace hpcdl::train
