#include "hpcdl/core/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <thread>

namespace hpcdl {
namespace {

int positive_env(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::max(0, std::atoi(text)) : 0;
}

/// HPCDL_THREADS; 0 where it is unset, empty or 0. What it cannot mean is told, once.
int asked_threads() {
  const char* text = std::getenv("HPCDL_THREADS");
  if (!text || !*text) return 0;
  char* end = nullptr;
  const auto n = std::strtol(text, &end, 10);
  while (std::isspace(static_cast<unsigned char>(*end))) ++end;
  if (end != text && !*end && n >= 0) return static_cast<int>(std::min<long>(n, std::numeric_limits<int>::max()));
  static std::once_flag told;
  std::call_once(told, [&] {
    std::fprintf(stderr, "[pool] HPCDL_THREADS=%s is no number of threads; it counts for nothing\n", text);
  });
  return 0;
}

/// CPUs of the cgroup's quota, rounded up; 0 when there is none.
int cgroup_quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period) {
    if (quota == "max" || period <= 0) return 0;
    return static_cast<int>((std::atof(quota.c_str()) + period - 1) / period);
  }
  double q = 0;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> q && v1_period >> period && q > 0 && period > 0) return static_cast<int>((q + period - 1) / period);
  return 0;
}

// Kernels of one step follow each other within a few microseconds; beyond that a sleeping worker is the better
// neighbour.
constexpr auto kSpin = std::chrono::microseconds(50);

template <class Done> bool spin(Done&& done) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                      : static_cast<int>(std::thread::hardware_concurrency());
  for (int limit : {cgroup_quota(), positive_env("OMP_NUM_THREADS"), asked_threads()})
    if (limit > 0) n = std::min(n, limit);
  return std::max(n, 1);
}

struct Pool::Workers {
  std::vector<std::thread> threads;
};

Pool::Pool(int threads)
    : threads_(threads > 0 ? threads : usable_cpus()),
      scratch_(static_cast<std::size_t>(threads_)),
      workers_(std::make_unique<Workers>()) {
  for (int t = 1; t < threads_; ++t) workers_->threads.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
  stop_.store(true);
  ticket_.fetch_add(1);
  ticket_.notify_all();
  for (auto& w : workers_->threads) w.join();
}

void Pool::reserve_scratch(std::int64_t bytes) {
  for (auto& block : scratch_)
    if (block.bytes() < bytes) block = Buffer(bytes);
}

void Pool::job(int thread) {
  if (!busy_) return job_(ctx_, thread);
  const auto start = std::chrono::steady_clock::now();
  job_(ctx_, thread);
  busy_[thread].nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

void Pool::run_raw(Job f, void* ctx) {
  job_ = f;
  ctx_ = ctx;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  ticket_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) ticket_.notify_all();
  job(0);
  if (spin([&] { return running_.load(std::memory_order_acquire) == 0; })) return;
  for (int left; (left = running_.load(std::memory_order_acquire)) != 0;)
    running_.wait(left, std::memory_order_acquire);
}

void Pool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    if (!spin([&] { return ticket_.load(std::memory_order_acquire) != seen; })) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      while (ticket_.load(std::memory_order_seq_cst) == seen) ticket_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    job(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace hpcdl
