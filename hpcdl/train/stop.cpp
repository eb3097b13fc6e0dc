#include "hpcdl/train/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace hpcdl::train {

namespace {

std::atomic<int> received{0};
std::atomic<std::int64_t> received_at{0};  // milliseconds of the monotonic clock; 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "used in a signal handler");

struct Watched {
  int signal;
  int watchers = 0;
  struct sigaction before{};  // the handler for the second signal
};
Watched watched[] = {{SIGTERM}, {SIGUSR1}, {SIGINT}};
std::atomic<std::int64_t> stop_at{INT64_MAX};  // Unix seconds
std::atomic<const char*> says{nullptr};        // after SIGINT
int alive = 0;                                 // of StopSignals
std::mutex alive_mutex;

/// A terminal has printed ^C, so the message begins on a new line.
constexpr char kHeard[] =
    "\ninterrupted: the run will save and end after this step; press Ctrl-C again to end it at once without saving\n";

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// When to stop in a job that ends at the given time: a minute before, but in a short job not before nine tenths of
/// what is left have passed.
std::int64_t stop_before(std::string_view job_end) {
  std::int64_t end = 0;
  const auto [rest, error] = std::from_chars(job_end.data(), job_end.data() + job_end.size(), end);
  const auto left = end - unix_seconds();
  if (error != std::errc() || rest != job_end.data() + job_end.size() || left <= 0) return INT64_MAX;
  return end - std::min<std::int64_t>(60, (left + 9) / 10);
}

/// The second signal ends the process, unless it repeats the same request: the previous handler is restored.
void handle(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t at = now.tv_sec * 1000 + now.tv_nsec / 1'000'000 + 1;
  std::int64_t first = 0;
  if (received_at.compare_exchange_strong(first, at)) {
    received.store(signal);
    const char* const words = says.load();
    if (signal == SIGINT && words) [[maybe_unused]]
      const auto lost = write(STDERR_FILENO, words, std::strlen(words));
    return;
  }
  const bool same = received.load() == signal || (received.load() == SIGINT && signal == SIGTERM);
  if (same && at - first < kSameAsking.count()) return;
  for (const auto& w : watched) {
    if (w.signal != signal) continue;
    struct sigaction next = w.before;
    if (next.sa_handler == SIG_IGN) next.sa_handler = SIG_DFL;
    sigaction(signal, &next, nullptr);
  }
  raise(signal);  // delivered when this handler returns
}

/// Without a terminal, shells start background processes with SIGINT ignored: it stays ignored.
bool ignored(int signal) {
  struct sigaction now{};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void install(Watched& w) {
  if (w.watchers++ > 0) return;
  sigaction(w.signal, nullptr, &w.before);  // created before it may be needed
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(w.signal, &action, nullptr);
}

void uninstall(Watched& w) {
  if (--w.watchers == 0) sigaction(w.signal, &w.before, nullptr);
}

}  // namespace

StopSignals::StopSignals(Interrupt interrupt, const char* job_end)
    : interrupt_(interrupt != Interrupt::ends && !(ignored(SIGINT))) {
  const std::lock_guard lock(alive_mutex);
  if (alive++ == 0) {
    received.store(0), received_at.store(0), says.store(nullptr);
    stop_at.store(job_end ? stop_before(job_end) : INT64_MAX);
  }
  if (interrupt == Interrupt::stops_and_says_so) says.store(isatty(STDERR_FILENO) ? kHeard : kHeard + 1);
  for (auto& w : watched)
    if (w.signal != SIGINT || interrupt_) install(w);
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(alive_mutex);
  --alive;
  for (auto& w : watched)
    if (w.signal != SIGINT || interrupt_) uninstall(w);
}

int StopSignals::requested() {
  const int signal = received.load();
  return signal == 0 && stop_at.load() != INT64_MAX && unix_seconds() >= stop_at.load() ? SIGTERM : signal;
}

}  // namespace hpcdl::train
