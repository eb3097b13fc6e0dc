// How ranks wait for each other, depending on the processors that they have.

#include "hpcdl/comm/engine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <vector>

#include "hpcdl/comm/impl.h"
#include "hpcdl/pool.h"
#include "hpcdl/testing/launched.h"

namespace hpcdl::comm {
namespace {

using namespace std::chrono_literals;
using testing::Launched;

std::vector<int> processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> list;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) list.push_back(i);
  return list;
}

/// Not a test but a rank, bound to one processor: its own, or the first. It reports whether it polls before it yields
/// the processor.
TEST(bound_rank, main) {
  const auto role = testing::launched_role();
  if (!role) GTEST_SKIP() << "the body of the ranks of the tests below";
  cpu_set_t set;
  CPU_ZERO(&set);
  const auto list = processors();
  CPU_SET(list.at(role->words.at("bound") == "apart" ? static_cast<std::size_t>(role->rank) : 0), &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
  auto joined = testing::join(*role, 60);
  testing::end_rank(joined, [&] {
    Pool pool(1);
    const Stream s(pool);
    const Group g = joined.world().blocking();
    for (int i = 0; i < 2; ++i) g.barrier(s);
    const bool polls = g.impl()->engine->patience().poll > 0ns;
    require(polls == (role->words.at("bound") == "apart"), "test", "expected the other of two ways to wait");
  });
}

void all_end_well(const char* bound) {
  Launched ranks(2, "bound_rank.main", {{"bound", bound}});
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.wait(r, Launched::Clock::now() + 120s), 0) << bound << ranks.words(r);
}

TEST(waiting, polls_where_ranks_are_bound_to_processors_of_their_own) {
  if (processors().size() < 2) GTEST_SKIP() << "needs two processors";
  all_end_well("apart");
}

TEST(waiting, lets_the_processor_go_where_ranks_are_bound_to_one) { all_end_well("together"); }

}  // namespace
}  // namespace hpcdl::comm
