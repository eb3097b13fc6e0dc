#include "hpcdl/core/team.h"

#include <immintrin.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <system_error>

#include "hpcdl/core/error.h"
#include "hpcdl/core/futex.h"

namespace hpcdl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Kernels of one step follow each other within a few microseconds; beyond that it is better that a thread
// sleeps, because its processor is free for one that has work.
constexpr microseconds kSpin{50};
/// A worker that has work but does not run for this long is late: waking takes some 50 us at most.
constexpr microseconds kLate{200};
/// How long a late worker is left out. At worst, a try costs a time slice of the scheduler, 3 to 4 ms.
constexpr milliseconds kShortest{2}, kLongest{128};

constexpr std::uint32_t kWaiting = 1u << 31;

template <class Done> bool spin(Done&& done) {
  const auto until = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (Clock::now() < until);
  return false;
}

nanoseconds processor_time(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
}

}  // namespace

Team::Team(int threads)
    : threads_(threads), seats_(static_cast<std::size_t>(threads)), records_(static_cast<std::size_t>(threads)) {
  for (int t = 1; t < threads; ++t) {
    try {
      workers_.emplace_back([this, t] { work(t); });
    } catch (const std::system_error& e) {
      dismiss();
      throw Error("[pool] " + std::to_string(threads) + " threads: the system starts only " + std::to_string(t - 1) +
                  " more than the first (" + e.what() + "): ask for fewer");
    }
    record(t).has_clock = ::pthread_getcpuclockid(workers_.back().native_handle(), &record(t).clock) == 0;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  for (int t = 1; t < threads_; ++t)
    if (seat(t).state.exchange(stop, std::memory_order_acq_rel) == asleep) futex_wake(seat(t).state);
  for (auto& w : workers_) w.join();
}

// ---- both sides

void Team::share(int number) {
  if (!job_.busy) return job_.f(job_.context, number);
  const auto start = Clock::now();
  job_.f(job_.context, number);
  job_.busy[number].nanoseconds += std::chrono::nanoseconds(Clock::now() - start).count();
}

void Team::finish() {
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == kWaiting + 1) futex_wake(unfinished_);
}

/// Claims the share of a worker that has not begun it, for another thread.
bool Team::claim(int thread) {
  Seat& s = seat(thread);
  std::uint32_t was = s.state.load(std::memory_order_relaxed);
  const bool mine = (was == offered && s.state.compare_exchange_strong(was, idle, std::memory_order_acq_rel)) ||
                    (s.left.load(std::memory_order_relaxed) && s.left.exchange(false, std::memory_order_acq_rel));
  if (mine) unclaimed_.fetch_sub(1, std::memory_order_relaxed);
  return mine;
}

// ---- a worker

void Team::work(int thread) {
  Seat& own = seat(thread);
  for (;;) {
    std::uint32_t now = idle;
    const auto called = [&] {
      now = own.state.load(std::memory_order_acquire);
      return now == offered || now == offered_to_owner || now == stop;
    };
    if (!spin(called)) {
      sleep(own);
      continue;
    }
    if (now == stop) return;
    const bool for_all = now == offered;
    if (!own.state.compare_exchange_strong(now, at_work, std::memory_order_acq_rel)) continue;
    if (for_all) unclaimed_.fetch_sub(1, std::memory_order_relaxed);
    own.signs.fetch_add(1, std::memory_order_relaxed);
    share(thread);
    own.state.store(idle, std::memory_order_release);
    finish();
    help(thread);
  }
}

void Team::sleep(Seat& own) {
  std::uint32_t was = idle;
  if (!own.state.compare_exchange_strong(was, asleep, std::memory_order_acq_rel)) return;
  own.signs.fetch_add(1, std::memory_order_relaxed);
  while (own.state.load(std::memory_order_acquire) == asleep) futex_wait(own.state, asleep);
  own.signs.fetch_add(1, std::memory_order_relaxed);
}

/// Takes shares that no worker has begun, starting at the seat after this thread's.
void Team::help(int thread) {
  for (int i = 1; i < threads_ && unclaimed_.load(std::memory_order_relaxed) > 0; ++i) {
    const int t = (thread + i) % threads_;
    if (t == 0 || t == thread || !claim(t)) continue;
    share(t);
    finish();
  }
}

// ---- the caller

void Team::run(const Job& job) {
  job_ = job;
  if (out_ > 0) readmit();
  unfinished_.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  unclaimed_.store(threads_ - 1, std::memory_order_relaxed);
  for (int t = 1; t < threads_; ++t) {
    if (record(t).out) seat(t).left.store(true, std::memory_order_release);
    else offer(t, offered);
  }
  share(0);
  take_back();
  wait();
}

void Team::run_on_each(const Job& job) {
  job_ = job;
  unfinished_.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  for (int t = 1; t < threads_; ++t) offer(t, offered_to_owner);
  share(0);
  wait();
}

void Team::offer(int thread, State how) {
  if (seat(thread).state.exchange(how, std::memory_order_acq_rel) == asleep) futex_wake(seat(thread).state);
}

void Team::take_back() {
  for (int t = 1; t < threads_ && unclaimed_.load(std::memory_order_relaxed) > 0; ++t) {
    if (!claim(t)) continue;
    if (!record(t).out) missed(t);
    share(t);
    finish();
  }
}

/// Waits until all shares are done. A worker has begun each of those that are not.
void Team::wait() {
  if (spin([&] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
  for (auto at_most = 2 * kLate;; at_most *= 2) {
    const auto since = Clock::now();
    for (int t = 1; t < threads_; ++t)
      if (record(t).has_clock && seat(t).state.load(std::memory_order_relaxed) == at_work)
        record(t).used = processor_time(record(t).clock);
    const auto left = unfinished_.fetch_or(kWaiting, std::memory_order_acq_rel) | kWaiting;
    if (left != kWaiting) futex_wait(unfinished_, left, at_most);
    if ((unfinished_.load(std::memory_order_acquire) & ~kWaiting) == 0) return;
    judge(since);
  }
}

/// This thread took the share of a worker that was called.
void Team::missed(int thread) {
  Record& r = record(thread);
  const auto now = Clock::now();
  const auto signs = seat(thread).signs.load(std::memory_order_relaxed);
  if (signs != r.signs) r.signs = signs, r.silent_since = now;
  else if (now - r.silent_since > kLate) leave_out(thread, now);
}

/// Leaves out those that have begun a share and were off their processors for most of the wait.
void Team::judge(Clock::time_point since) {
  const auto now = Clock::now();
  for (int t = 1; t < threads_; ++t) {
    const Record& r = record(t);
    if (r.out || !r.has_clock || seat(t).state.load(std::memory_order_relaxed) != at_work) continue;
    const auto missing = now - since - (processor_time(r.clock) - r.used);
    if (missing > kLate && 2 * missing > now - since) leave_out(t, now);
  }
}

void Team::leave_out(int thread, Clock::time_point now) {
  Record& r = record(thread);
  r.pause = now - r.until < 4 * r.pause ? std::min<Clock::duration>(2 * r.pause, kLongest) : kShortest;
  r.until = now + r.pause;
  r.out = true;
  ++out_;
}

void Team::readmit() {
  const auto now = Clock::now();
  for (auto& r : records_)
    if (r.out && now >= r.until) {
      r.out = false, r.until = now, r.silent_since = now;
      --out_;
    }
}

}  // namespace hpcdl
