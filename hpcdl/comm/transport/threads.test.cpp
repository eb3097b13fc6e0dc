#include "hpcdl/comm/transport/threads.h"

#include <gtest/gtest.h>

#include <utility>

#include "hpcdl/comm/transport/passing_for_tests.h"
#include "hpcdl/testing/exercise.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

TEST(threads, random_collectives_over_split_groups) {
  for (int n = 1; n <= 9; ++n)
    testing::run_ranks(n, [n](Group world) { testing::exercise(world, 100 + static_cast<std::uint64_t>(n), 150); });
}

TEST(threads, a_thousand_random_collectives) {
  testing::run_ranks(4, [](Group world) { testing::exercise(world, 1000, 1000); });
}

TEST(threads, random_collectives_on_hosts_of_unlike_size) {
  testing::RankOptions options;
  options.hosts = {0, 0, 2, 2, 2, 5};
  testing::run_ranks(6, [](Group world) { testing::exercise(world, 7, 200); }, options);
}

/// A rank does its part between the first check and the check whether that rank is alive, and has ended by then.
TEST(threads, messages_sent_before_a_rank_ended_count) {
  auto t = thread_transports(2);
  const int ranks[] = {0, 1};
  const Patience patience{.spins = 10};  // as with more ranks than processors: naps follow yields at once
  Peers peers(*t[1], ranks, 1, 7, patience);
  bool ready = false;
  int asked = 0;
  EXPECT_NO_THROW(peers.wait_until(0, [&] {
    const bool seen = ready;
    if (++asked > patience.spins + 300) ready = true, t[0].reset();
    return seen;
  }));
}

/// Counts naps.
class Napping : public PassingTransport {
 public:
  using PassingTransport::PassingTransport;
  void nap(std::chrono::microseconds at_most) override { ++naps, PassingTransport::nap(at_most); }

  int naps = 0;
};

/// Otherwise the nap of one rank would make the other nap, and so on for ever.
TEST(threads, a_wait_that_ends_soon_takes_no_nap) {
  auto t = thread_transports(2);
  Napping napping(std::move(t[1]));
  const int ranks[] = {0, 1};
  const auto naps_of = [&](const Patience& patience, int asks) {
    Peers peers(napping, ranks, 1, 7, patience);
    napping.naps = 0;
    int asked = 0;
    peers.wait_until(0, [&] { return ++asked > patience.spins + asks; });
    return napping.naps;
  };
  for (const bool beside : {false, true})  // polls come before or after the yields
    for (const int asks : {300, 1000})
      EXPECT_EQ(naps_of({.poll = std::chrono::microseconds(200), .beside = beside}, asks), 0) << beside << asks;
  EXPECT_GT(naps_of({.spins = 10}, 300), 0) << "with more ranks than processors";
}

TEST(threads, messages_match_by_sender_and_tag) {
  auto t = thread_transports(2);
  std::vector<std::byte> a(100000, std::byte{1}), b(5, std::byte{2}), x(5), y(100000), z(4);
  auto s1 = t[0]->start_send(1, 7, a), s2 = t[0]->start_send(1, 8, b);
  auto r2 = t[1]->start_receive(0, 8, x);
  EXPECT_TRUE(t[1]->done(r2));
  EXPECT_EQ(x, b);
  EXPECT_TRUE(t[0]->done(s2));
  EXPECT_FALSE(t[0]->done(s1));
  auto r1 = t[1]->start_receive(0, 7, y);
  EXPECT_TRUE(t[1]->done(r1));
  EXPECT_TRUE(t[0]->done(s1));
  EXPECT_EQ(y, a);
  t[0]->start_send(1, 9, b);
  auto r3 = t[1]->start_receive(0, 9, z);
  EXPECT_THROW(t[1]->done(r3), PeerLost) << "the sizes differ";
  auto r4 = t[1]->start_receive(0, 10, z);
  t[1]->cancel(r4);
  auto r5 = t[1]->start_receive(0, 11, z);
  t[0].reset();
  EXPECT_THROW(t[1]->done(r5), PeerLost) << "the sender has left";
  t[1]->withdraw();
}

}  // namespace
}  // namespace hpcdl::comm
