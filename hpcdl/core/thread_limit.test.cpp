#include "hpcdl/core/thread_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hpcdl/core/error.h"
#include "hpcdl/pool.h"

namespace hpcdl {
namespace {

TEST(thread_limit, leaves_room_for_experiments_and_refuses_what_never_runs) {
  EXPECT_GE(most_threads(), 16);
  EXPECT_LE(most_threads(), 1024);
  EXPECT_NO_THROW(check_threads(0, "eval", "--threads"));
  EXPECT_NO_THROW(check_threads(most_threads(), "eval", "--threads"));
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{most_threads()} + 1, std::int64_t{1} << 40})
    EXPECT_THROW(check_threads(bad, "eval", "--threads"), UsageError) << bad;
}

TEST(thread_limit, says_what_would_do) {
  try {
    check_threads(100000, "config", "train.threads");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_EQ(e.what(),
              fmt::format("[config] train.threads = 100000: expected 1 to {} threads on this machine, or 0 for "
                          "all that it can run at once, {}",
                          most_threads(), usable_cpus()));
  }
}

}  // namespace
}  // namespace hpcdl
