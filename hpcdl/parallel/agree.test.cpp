#include "hpcdl/parallel/agree.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

using namespace std::chrono_literals;

TEST(host_by_host, the_others_find_the_files_of_the_first_rank_of_a_host) {
  for (int n = 1; n <= 5; ++n) {
    std::atomic<int> made[2] = {0, 0};
    testing::run_ranks(n,
                       [&](const comm::Group& world) {
                         auto& here = made[world.rank() % 2];
                         const bool first = first_of_host(world);
                         EXPECT_EQ(first, world.rank() < 2);
                         const int found = host_by_host(world, [&] { return here++; });
                         EXPECT_EQ(found == 0, first);
                       },
                       {.hosts = {0, 1, 0, 1, 0}, .on_lost = {}});
  }
}

/// Preparing a large data set takes hours, and all other ranks wait for it.
TEST(host_by_host, it_may_take_longer_than_the_deadline_of_a_collective) {
  testing::run_ranks(3,
                     [&](const comm::Group& world) {
                       EXPECT_EQ(host_by_host(world,
                                              [&] {
                                                if (world.rank() == 0) std::this_thread::sleep_for(5s);
                                                return 7;
                                              }),
                                 7);
                     },
                     {.deadline_seconds = 2, .hosts = {}, .on_lost = {}});
}

TEST(host_by_host, an_error_of_the_first_rank_is_its_own) {
  std::atomic<bool> second = false;
  const auto errors = testing::rank_errors(2, [&](const comm::Group& world) {
    host_by_host(world, [&] {
      if (world.rank() == 0) fail("data", "no such file");
      second = true;
      return 1;
    });
    any_rank(world, false);
  });
  EXPECT_EQ(errors[0], "[data] no such file");
  EXPECT_NE(errors[1], "");
  EXPECT_FALSE(second) << "the second rank has begun the same work, although the first has failed";
}

TEST(agree, sums_counts_and_votes_are_the_same_everywhere) {
  for (int n = 1; n <= 5; ++n) {
    testing::run_ranks(n, [&](const comm::Group& world) {
      const double mine[] = {0.1 * world.rank(), 1e300, 1};
      const auto all = sum_over_ranks(world, mine);
      double want = 0;
      for (int r = 0; r < n; ++r) want += 0.1 * r;
      EXPECT_EQ(all[0], want);
      EXPECT_EQ(all[2], n);
      EXPECT_FALSE(any_rank(world, false));
      EXPECT_TRUE(any_rank(world, world.rank() == n - 1));
      EXPECT_GE(threads_per_rank(world), 1);
    });
  }
}

TEST(agree, the_values_of_the_first_rank_are_sent_to_all) {
  for (int n = 1; n <= 5; ++n) {
    testing::run_ranks(n, [&](const comm::Group& world) {
      for (const std::int32_t size : {0, 1, 1031}) {
        std::vector<std::int32_t> first(static_cast<std::size_t>(size));
        std::iota(first.begin(), first.end(), INT32_MAX - size);
        const auto others = std::vector<std::int32_t>(static_cast<std::size_t>(world.rank()) * 7, world.rank());
        EXPECT_EQ(of_first_rank(world, world.rank() == 0 ? first : others), first);
      }
    });
  }
}

TEST(agree, the_first_rank_of_each_host_goes_first) {
  std::atomic<int> done[2] = {0, 0};
  testing::run_ranks(5,
                     [&](const comm::Group& world) {
                       const int host = world.rank() % 2;
                       const bool first = world.rank() < 2;
                       host_by_host(world, [&] {
                         if (!first) {
                           EXPECT_GE(done[host].load(), 1);
                         }
                         return ++done[host];
                       });
                     },
                     {.hosts = {0, 1, 0, 1, 0}, .on_lost = {}});
  EXPECT_EQ(done[0] + done[1], 5);
}

}  // namespace
}  // namespace hpcdl::parallel
