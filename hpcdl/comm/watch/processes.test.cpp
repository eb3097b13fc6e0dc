// Real processes, one of which is killed, stopped, or calls something else: all others end with code 71 and one
// sentence each that names it. A host that is cut off is tested in tests/hosts/cut_off.sh.

#include <gtest/gtest.h>

#include "hpcdl/buffer.h"
#include "hpcdl/pool.h"
#include "hpcdl/testing/launched.h"

namespace hpcdl::comm {
namespace {

using namespace std::chrono_literals;
using testing::Launched;
constexpr int kSteps = 100'000, kFaultAt = 20;
constexpr auto kLimit = 30s;  // seconds after the fault within which all ranks must end

/// One step of a rank, in which `fault` happens.
void step(const Group& world, const Stream& s, const std::string& fault) {
  {
    const InPhase phase(world.ledger(), Phase::data);
    std::this_thread::sleep_for(fault == "hang" ? 3'600'000ms : 2ms);
  }
  const InPhase phase(world.ledger(), Phase::compute);
  if (fault == "error") fail("data", "tokens.bin is gone");
  OwnedTensor x({{fault == "size" ? 512 : 1024}, DType::f32}), all({{16 * world.size()}, DType::f32}),
      part({{16}, DType::f32});
  const auto reduce = [&] {
    const Label label("grad.0");
    world.all_reduce(s, x.tensor).wait();
  };
  const auto gather = [&] {
    const Label label("weights");
    world.all_gather(s, all.tensor, part.tensor).wait();
  };
  if (fault == "order") gather(), reduce();
  else reduce(), gather();
}

/// Not a test but the body of a rank.
TEST(faulty_rank, main) {
  const auto role = testing::launched_role();
  if (!role) GTEST_SKIP() << "the body of the ranks of the tests below";
  auto joined = testing::join(*role, 2);
  testing::end_rank(joined, [&] {
    Pool pool(1);
    const bool bad = std::to_string(role->rank) == role->words.at("bad");
    for (int i = 0; i < kSteps; ++i) {
      step(joined.world(), Stream(pool), bad && i == kFaultAt ? role->words.at("fault") : "");
      std::printf("%d\n", i);
      std::fflush(stdout);
    }
  });
}

Launched launch(int world, const std::string& fault = "", int bad = -1) {
  return Launched(world, "faulty_rank.main", {{"fault", fault}, {"bad", std::to_string(bad)}});
}

/// All except `except` end in time with 71 and one line that contains every part.
void expect_verdict(Launched& ranks, int world, int except, std::initializer_list<std::string> parts) {
  const Deadline limit = Clock::now() + kLimit;
  for (int r = 0; r < world; ++r) {
    if (r == except) continue;
    EXPECT_EQ(ranks.wait(r, limit), exit_code::kPeerLost) << "rank " << r << ": " << ranks.words(r);
    const std::string words = ranks.words(r);
    EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 1) << words;
    for (const auto& part : parts)
      EXPECT_NE(words.find(part), std::string::npos) << "rank " << r << ": expected \"" << part << "\" in: " << words;
  }
}

TEST(processes, a_killed_rank_is_named) {
  for (const int bad : {1, 0}) {
    auto ranks = launch(3);
    ASSERT_TRUE(ranks.prints(0, std::to_string(200))) << ranks.words(0);
    ranks.signal(bad, SIGKILL);
    expect_verdict(ranks, 3, bad,
                   {fmt::format("[dist] rank {} on ", bad), "is gone (its connection is gone)", " ago it was ",
                    " number ", " waits in ", "of group world"});
    EXPECT_EQ(ranks.wait(bad, Clock::now() + kLimit), -2);
  }
}

TEST(processes, a_frozen_rank_is_named_and_leaves_when_it_wakes) {
  for (const int bad : {2, 0}) {
    auto ranks = launch(3);
    ASSERT_TRUE(ranks.prints(1, std::to_string(kFaultAt))) << ranks.words(1);
    ranks.signal(bad, SIGSTOP);
    expect_verdict(
        ranks, 3, bad,
        {fmt::format("[dist] rank {} on ", bad), "does not answer: it is frozen", " ago it was ", " waits in "});
    ranks.signal(bad, SIGCONT);
    EXPECT_EQ(ranks.wait(bad, Clock::now() + kLimit), exit_code::kPeerLost) << ranks.words(bad);
    const std::string words = ranks.words(bad);
    EXPECT_NE(words.find(fmt::format("[dist] rank {} on ", bad)), std::string::npos) << "it blames others: " << words;
  }
}

TEST(processes, different_shapes_are_reported) {
  auto ranks = launch(3, "size", 2);
  expect_verdict(
      ranks, 3, -1,
      {"[dist] ranks make different calls: rank 2 on ",
       "all_reduce number 41 of group world, sum of 512 F32, grad.0 while rank 0 on ", "sum of 1024 F32, grad.0"});
}

TEST(processes, a_different_order_is_reported) {
  auto ranks = launch(2, "order", 1);
  expect_verdict(ranks, 2, -1,
                 {"rank 1 on ", "is in all_gather number 41 of group world, 16 F32, weights while rank 0 on ",
                  "is in all_reduce number 41 of group world, sum of 1024 F32, grad.0"});
}

TEST(processes, a_rank_that_hangs_outside_collectives_is_named_and_ended) {
  auto ranks = launch(3, "hang", 1);
  expect_verdict(ranks, 3, -1,
                 {"[dist] rank 1 on ", "has been in data for ",
                  "did not come to all_reduce number 41 of group world, sum of 1024 F32, grad.0"});
}

TEST(processes, the_own_error_of_a_rank_is_reported_by_all) {
  auto ranks = launch(3, "error", 1);
  expect_verdict(ranks, 3, 1, {"[dist] rank 1 on ", "ended by an error of its own: [data] tokens.bin is gone"});
  EXPECT_EQ(ranks.wait(1, Clock::now() + kLimit), exit_code::kInternal);
}

}  // namespace
}  // namespace hpcdl::comm
