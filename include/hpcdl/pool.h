#pragma once
// The CPU thread pool. A job is cut into one share per thread. The caller works on share 0, worker t on share t;
// workers spin for a short while after a job (kernels follow each other within microseconds) and then sleep. A share
// that its worker has not begun is taken by a thread that is done, so a job does not wait for a thread that another
// program keeps off its processor. The work of a share depends only on its number: results never depend on timing.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "hpcdl/buffer.h"

namespace hpcdl {

class Team;  // the threads (core/team.h)

/// CPUs this process may use: affinity mask, cgroup quota, OMP_NUM_THREADS and HPCDL_THREADS, whichever is least.
int usable_cpus();

class Pool {
 public:
  /// `threads` <= 0 means usable_cpus().
  explicit Pool(int threads = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  /// Ensures that scratch(t) has at least `bytes` for every thread. The blocks only grow, so after the first
  /// call with the largest size nothing is allocated. Call it before run(): it may throw, jobs may not.
  void reserve_scratch(std::int64_t bytes);
  /// Working memory of one share (packing buffers, partial sums), valid until the next reserve_scratch(). Its contents
  /// are lost between kernels.
  std::byte* scratch(int thread) const { return scratch_[static_cast<std::size_t>(thread)].data(); }

  /// Working time of one share, on a separate cache line.
  struct alignas(64) Busy {
    std::int64_t nanoseconds = 0;
  };
  /// From now on adds the time that each share takes to busy[share]; null stops it. Read and change it between
  /// calls of run(). A pool of one thread measures nothing, because it is always busy.
  void meter(Busy* busy) { busy_ = busy; }

  /// Calls f(share) once for each share, 0 .. threads()-1, and waits. One thread may work on several shares, one after
  /// another: shares must not wait for each other. f must not throw and must not call run() on this pool.
  template <class F> void run(F&& f) { start(f, false); }
  /// The same with every share on its own thread, even if it has to wait for that thread: for work on threads
  /// themselves (binding them, measuring them).
  template <class F> void run_on_each_thread(F&& f) { start(f, true); }

 private:
  using Job = void (*)(void*, int);
  template <class F> void start(F& f, bool each) {
    if (threads_ == 1) return static_cast<void>(f(0));
    run_raw([](void* ctx, int thread) { (*static_cast<F*>(ctx))(thread); },
            const_cast<void*>(static_cast<const void*>(std::addressof(f))), each);
  }
  void run_raw(Job f, void* ctx, bool each);

  int threads_ = 1;
  std::vector<Buffer> scratch_;
  std::unique_ptr<Team> team_;
  Busy* busy_ = nullptr;
};

/// f(begin, end) over [0, n), one contiguous share per thread; runs on the caller when n <= grain.
template <class F> void parallel_for(Pool& pool, std::int64_t n, std::int64_t grain, F&& f) {
  if (n <= 0) return;
  const std::int64_t parts = std::min<std::int64_t>(pool.threads(), (n + grain - 1) / std::max<std::int64_t>(grain, 1));
  if (parts <= 1) return f(std::int64_t{0}, n);
  pool.run([&](int t) {
    if (t < parts) f(n * t / parts, n * (t + 1) / parts);
  });
}

/// f(i) for every i in [0, n), handed out one at a time: for uneven tasks. Tasks must write disjoint memory.
template <class F> void parallel_tasks(Pool& pool, std::int64_t n, F&& f) {
  if (n <= 1 || pool.threads() == 1) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  alignas(64) std::atomic<std::int64_t> next{0};
  pool.run([&](int) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i);
  });
}

}  // namespace hpcdl
