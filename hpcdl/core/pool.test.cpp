#include "hpcdl/pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace hpcdl {
namespace {

TEST(pool, an_invalid_number_of_threads_is_reported_once) {
  const char* before = std::getenv("HPCDL_THREADS");
  const std::string kept = before ? before : "";
  ::setenv("HPCDL_THREADS", "1", 1);
  EXPECT_EQ(usable_cpus(), 1);
  testing::internal::CaptureStderr();
  for (const char* fine : {"0", "", " 1 ", "100000"}) ::setenv("HPCDL_THREADS", fine, 1), usable_cpus();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  for (const char* odd : {"2k", "-3", "all"}) ::setenv("HPCDL_THREADS", odd, 1), usable_cpus();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[pool] HPCDL_THREADS=2k is not a number of threads and is ignored\n");
  if (before) ::setenv("HPCDL_THREADS", kept.c_str(), 1);
  else ::unsetenv("HPCDL_THREADS");
}

TEST(pool, runs_each_thread_once_and_waits) {
  for (const int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<int> calls(static_cast<std::size_t>(threads));  // plain ints: TSan reports a missing wait as a race
    for (int round = 0; round < 2000; ++round) pool.run([&](int t) { ++calls[static_cast<std::size_t>(t)]; });
    for (const int c : calls) EXPECT_EQ(c, 2000) << threads << " threads";
  }
}

TEST(pool, meters_the_work_of_each_thread) {
  Pool pool(3);
  std::vector<Pool::Busy> busy(3);
  const auto work = [&](int t) { std::this_thread::sleep_for(std::chrono::milliseconds(2 * t)); };
  pool.meter(busy.data());
  for (int i = 0; i < 3; ++i) pool.run(work);
  pool.meter(nullptr);
  const auto before = busy[2].nanoseconds;
  EXPECT_GE(busy[1].nanoseconds, 6'000'000);
  EXPECT_GE(before, 12'000'000);
  EXPECT_GE(busy[0].nanoseconds, 0);
  pool.run(work);
  EXPECT_EQ(busy[2].nanoseconds, before);
}

// Workers spin for a while after a job and then sleep: tests both ways of waking them.
TEST(pool, wakes_workers_that_have_gone_to_sleep) {
  Pool pool(3);
  int sum[3] = {};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.run([&](int t) { sum[t] += t + 1; });
  }
  EXPECT_EQ(sum[0] + sum[1] + sum[2], 5 * (1 + 2 + 3));
}

TEST(pool, ends_at_once_when_nothing_was_ever_run) {
  for (int i = 0; i < 50; ++i) Pool pool(4);
}

TEST(pool, parallel_for_covers_every_index_once) {
  Pool pool(3);
  for (const std::int64_t n : {0, 1, 2, 3, 7, 64, 1000, 4097})
    for (const std::int64_t grain : {1, 5, 64, 100000}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      parallel_for(pool, n, grain, [&](std::int64_t b, std::int64_t e) {
        for (auto i = b; i < e; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}), n) << "grain " << grain;
      for (const int s : seen) ASSERT_EQ(s, 1);
    }
}

TEST(pool, parallel_tasks_hands_out_every_task_once) {
  Pool pool(3);
  for (const std::int64_t n : {0, 1, 2, 100, 1001}) {
    std::vector<int> seen(static_cast<std::size_t>(n));
    parallel_tasks(pool, n, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
    for (const int s : seen) ASSERT_EQ(s, 1) << n;
  }
}

// Shares depend only on the number of threads, never on their timing.
TEST(pool, parallel_for_splits_the_same_way_every_time) {
  Pool pool(3);
  std::vector<std::int64_t> first(3), again(3);
  const auto ends = [&](std::vector<std::int64_t>& to) {
    std::vector<std::int64_t> owner(999);
    parallel_for(pool, 999, 1, [&](std::int64_t b, std::int64_t e) { owner[static_cast<std::size_t>(b)] = e; });
    to.clear();
    for (const auto e : owner)
      if (e > 0) to.push_back(e);
  };
  ends(first);
  for (int i = 0; i < 100; ++i) {
    ends(again);
    ASSERT_EQ(first, again);
  }
  EXPECT_EQ(first, (std::vector<std::int64_t>{333, 666, 999}));
}

// ---- workers that are stopped by a signal, as if another program ran

std::atomic<int> held{0};
std::atomic<bool> released{false};

void hold(int) {
  held.fetch_add(1);
  while (!released.load()) {
    const timespec nap{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&nap, nullptr);
  }
}

template <class Done> bool within_seconds(int seconds, Done&& done) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done())
    if (std::chrono::steady_clock::now() > until) return false;
  return true;
}

/// Stops the workers of a pool at any point; TSan may do so later, or not at all.
class HeldUp {
 public:
  explicit HeldUp(Pool& pool) : threads_(static_cast<std::size_t>(pool.threads())) {
    held = 0, released = false;
    struct sigaction how = {};
    how.sa_handler = hold;
    ::sigaction(SIGUSR1, &how, nullptr);  // permanently: a signal may arrive late
    pool.run_on_each_thread([&](int t) { threads_[static_cast<std::size_t>(t)] = ::pthread_self(); });
    for (std::size_t t = 1; t < threads_.size(); ++t) ::pthread_kill(threads_[t], SIGUSR1);
    within_seconds(2, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return held.load() == pool.threads() - 1;
    });
    // A pool that waited for them would wait for ever: the test fails instead.
    watch_ = std::thread([this] {
      late_ = !within_seconds(20, [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return released.load();
      });
      released = true;
    });
  }

  /// Lets the workers continue; false if that had to be done before.
  bool release() {
    released = true;
    watch_.join();
    return !late_;
  }
  pthread_t thread(int t) const { return threads_[static_cast<std::size_t>(t)]; }

 private:
  std::vector<pthread_t> threads_;
  std::thread watch_;
  bool late_ = false;
};

TEST(pool, waits_for_no_worker_that_has_not_begun) {
  for (const int threads : {2, 4}) {
    Pool pool(threads);
    HeldUp workers(pool);
    std::vector<int> calls(static_cast<std::size_t>(threads));
    std::vector<int> sums(1000);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    int rounds = 0;
    do {  // long enough that the workers are skipped, and tried again
      pool.run([&](int t) { ++calls[static_cast<std::size_t>(t)]; });
      parallel_for(pool, 1000, 1, [&](std::int64_t b, std::int64_t e) {
        for (auto i = b; i < e; ++i) ++sums[static_cast<std::size_t>(i)];
      });
    } while (++rounds < 100 || std::chrono::steady_clock::now() < until);
    EXPECT_TRUE(workers.release()) << "a job waited for a worker that is not running, with " << threads << " threads";
    for (const int c : calls) EXPECT_EQ(c, rounds);
    for (const int s : sums) ASSERT_EQ(s, rounds);
  }
}

TEST(pool, takes_late_workers_back) {
  Pool pool(2);
  HeldUp workers(pool);
  for (int i = 0; i < 10; ++i) {
    pool.run([](int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // late by now: skipped
  }
  EXPECT_TRUE(workers.release());
  EXPECT_TRUE(within_seconds(60, [&] {
    std::atomic<bool> there{false};
    pool.run([&](int t) {
      if (t == 1 && ::pthread_equal(::pthread_self(), workers.thread(1))) there = true;
      if (t == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return there.load();
  }));
}

TEST(pool, runs_each_share_on_a_thread_of_its_own_where_asked) {
  Pool pool(4);
  HeldUp workers(pool);
  for (int i = 0; i < 5; ++i) {
    pool.run([](int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(workers.release());
  for (int round = 0; round < 200; ++round) {
    std::vector<std::thread::id> ids(4);
    pool.run_on_each_thread([&](int t) { ids[static_cast<std::size_t>(t)] = std::this_thread::get_id(); });
    const std::set<std::thread::id> different(ids.begin(), ids.end());
    ASSERT_EQ(different.size(), 4u);
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    pool.run([](int) {});
  }
}

TEST(pool, memory_goes_with_the_share_and_not_with_the_thread) {
  Pool pool(4);
  pool.reserve_scratch(64);
  for (int round = 0; round < 2000; ++round) {
    pool.run([&](int t) { pool.scratch(t)[0] = static_cast<std::byte>(t + round); });
    for (int t = 0; t < 4; ++t) ASSERT_EQ(pool.scratch(t)[0], static_cast<std::byte>(t + round));
  }
}

}  // namespace
}  // namespace hpcdl
