#include "hpcdl/train/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace hpcdl::train {

namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

constexpr int kSignals[] = {SIGTERM, SIGUSR1, SIGINT};
struct sigaction before[3];
bool installed[3];
int alive = 0;  // of StopSignals
std::mutex alive_mutex;

/// The second signal finds the default action and ends the process.
void handle(int signal) {
  received.store(signal);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int s : kSignals)
    if (s != SIGINT || signal == SIGINT) sigaction(s, &plain, nullptr);
}

}  // namespace

StopSignals::StopSignals(bool on_interrupt) {
  const std::lock_guard lock(alive_mutex);
  if (alive++ > 0) return;
  received.store(0);
  struct sigaction action {};
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

int StopSignals::requested() { return received.load(); }

}  // namespace hpcdl::train
