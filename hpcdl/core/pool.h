#pragma once
// The CPU thread pool. The caller is thread 0; workers spin for a short while after a job (kernels follow each other
// within microseconds) and then sleep. Work is split statically, so a result never depends on timing.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "hpcdl/core/buffer.h"

namespace hpcdl {

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

  /// Makes sure that scratch(t) has at least `bytes` for every thread. The blocks only ever grow, so after the first
  /// call with the largest size nothing is allocated. Call it before run(): it may throw, jobs may not.
  void reserve_scratch(std::int64_t bytes);
  /// Thread-private working memory of a kernel (packing buffers, partial sums), valid until the next reserve_scratch().
  /// What it holds is lost between kernels.
  std::byte* scratch(int thread) const { return scratch_[static_cast<std::size_t>(thread)].data(); }

  /// Working time of one thread, a cache line of its own.
  struct alignas(64) Busy {
    std::int64_t nanoseconds = 0;
  };
  /// From now on adds the time that each thread spends in jobs to busy[thread]; null stops that. Read and change it
  /// between run()s. A pool of one thread measures nothing: it is busy all the time.
  void meter(Busy* busy) { busy_ = busy; }

  /// Calls f(thread) once on each thread, 0 .. threads()-1, and waits. f must not throw and must not call run() on this
  /// pool.
  template <class F> void run(F&& f) {
    if (threads_ == 1) return f(0);
    using Fn = std::remove_reference_t<F>;
    run_raw([](void* ctx, int thread) { (*static_cast<Fn*>(ctx))(thread); },
            const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

 private:
  struct Workers;  // threads, whose header every kernel would read
  using Job = void (*)(void*, int);
  void run_raw(Job f, void* ctx);
  void work(int thread);
  void job(int thread);

  int threads_ = 1;
  Job job_ = nullptr;
  void* ctx_ = nullptr;
  Busy* busy_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> ticket_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<Buffer> scratch_;
  std::unique_ptr<Workers> workers_;
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
