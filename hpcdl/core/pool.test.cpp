#include "hpcdl/core/pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace hpcdl {
namespace {

TEST(pool, a_number_of_threads_that_is_none_is_told_once) {
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
            "[pool] HPCDL_THREADS=2k is no number of threads; it counts for nothing\n");
  if (before) ::setenv("HPCDL_THREADS", kept.c_str(), 1);
  else ::unsetenv("HPCDL_THREADS");
}

TEST(pool, runs_each_thread_once_and_waits) {
  for (const int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<int> calls(static_cast<std::size_t>(threads));  // plain ints: a missing wait is a race that TSan sees
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

// Workers spin for a while after a job and then sleep: both ways of waking them.
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

// Shares depend on the number of threads alone, never on which comes first.
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

}  // namespace
}  // namespace hpcdl
