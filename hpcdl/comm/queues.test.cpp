// Calls that wait for no calls of other groups, and messages that wait for no collectives: with one queue per rank,
// most of these tests would wait until the deadline.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/comm/turn.h"
#include "hpcdl/group.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

using testing::Cpu;
using testing::rank_errors;
using testing::run_ranks;
using testing::tensor;

/// Ranks in shared memory, and ranks that send messages.
const std::vector<std::vector<int>> kHosts{{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 0, 1, 1}};
constexpr std::size_t kSizes[] = {1, 1000, 1 << 18};

template <class F> void on_hosts(int n, F&& body, double seconds = 30) {
  for (const auto& hosts : kHosts)
    run_ranks(n, body, {.deadline_seconds = seconds, .hosts = {hosts.begin(), hosts.begin() + n}, .on_lost = {}});
}

TEST(queues, ranks_may_start_collectives_of_two_groups_in_different_orders) {
  on_hosts(2, [](const Group& world) {
    Cpu cpu;
    const Group groups[] = {world.split(0, world.rank(), "a"), world.split(0, world.rank(), "b")};
    for (const std::size_t n : kSizes)
      for (const bool second_waits : {false, true}) {
        std::vector<float> x[] = {std::vector<float>(n, 1.0F), std::vector<float>(n, 10.0F)};
        const auto first = static_cast<std::size_t>(world.rank()), second = 1 - first;
        Work begun = groups[first].all_reduce(cpu.stream, tensor(x[first]));
        const Group& other = groups[second];
        (second_waits ? other.blocking() : other).all_reduce(cpu.stream, tensor(x[second])).wait();
        begun.wait();
        EXPECT_EQ(x[0], std::vector<float>(n, 2.0F));
        EXPECT_EQ(x[1], std::vector<float>(n, 20.0F));
      }
  });
}

TEST(queues, a_message_is_sent_while_a_collective_waits_for_it) {
  on_hosts(2, [](const Group& world) {
    Cpu cpu;
    for (const std::size_t n : kSizes)
      for (const bool now : {false, true}) {
        const Group g = now ? world.blocking() : world;
        std::vector<float> x(n, 1.0F), message(n, static_cast<float>(world.rank()));
        if (world.rank() == 0) {
          Work sum = world.all_reduce(cpu.stream, tensor(x));
          Work sent = g.send(cpu.stream, tensor(message), 1);
          sum.wait(), sent.wait();
        } else {
          g.receive(cpu.stream, tensor(message), 0).wait();
          EXPECT_EQ(message, std::vector<float>(n, 0.0F));
          world.all_reduce(cpu.stream, tensor(x)).wait();
        }
        EXPECT_EQ(x, std::vector<float>(n, 2.0F));
      }
  });
}

/// Of a pipeline: each rank waits for a message of the one before it, which sends it after a collective of its own
/// group has begun.
TEST(queues, messages_go_round_while_every_rank_is_in_a_collective) {
  on_hosts(4, [](const Group& world) {
    Cpu cpu;
    const Group pairs = world.split(world.rank() % 2, world.rank(), "pairs");
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(5000, 1.0F), in(3000), out(3000, static_cast<float>(world.rank() + round));
      const int next = (world.rank() + 1) % 4, before = (world.rank() + 3) % 4;
      Work sum, sent, received;
      const auto begin_sum = [&] { sum = pairs.all_reduce(cpu.stream, tensor(x)); };
      if (world.rank() < 2) begin_sum();
      received = world.receive(cpu.stream, tensor(in), before);
      sent = world.send(cpu.stream, tensor(out), next);
      received.wait();
      if (world.rank() >= 2) begin_sum();
      sent.wait(), sum.wait();
      EXPECT_EQ(in, std::vector<float>(3000, static_cast<float>(before + round)));
      EXPECT_EQ(x, std::vector<float>(5000, 2.0F));
    }
  });
}

/// Each rank starts the calls of three groups in an order of its own, but those of one group in the common order.
TEST(queues, groups_make_progress_in_any_order_of_calls) {
  constexpr int kCalls = 30;
  on_hosts(4, [](const Group& world) {
    Cpu cpu;
    const Group groups[] = {world, world.split(world.rank() / 2, world.rank(), "rows"),
                            world.split(world.rank() % 2, world.rank(), "columns")};
    for (int round = 0; round < 4; ++round) {
      std::vector<std::size_t> order;
      for (std::size_t g = 0; g < 3; ++g) order.insert(order.end(), kCalls, g);
      const Rng rng{static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(world.rank())};
      for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[rng.below(i, i + 1)]);
      int next[3] = {0, 0, 0};
      std::vector<std::vector<float>> data(order.size());
      std::vector<Work> work;
      std::vector<float> want;
      for (std::size_t i = 0; i < order.size(); ++i) {
        const Group& g = groups[order[i]];
        const int call = next[order[i]]++;
        data[i].assign(call % 5 == 0 ? 40000 : 7, static_cast<float>(call));
        want.push_back(static_cast<float>(call * g.size()));
        work.push_back(g.all_reduce(cpu.stream, tensor(data[i])));
      }
      if (round % 2 == 1) std::reverse(work.begin(), work.end());
      for (auto& w : work) w.wait();
      for (std::size_t i = 0; i < order.size(); ++i)
        ASSERT_EQ(data[i], std::vector<float>(data[i].size(), want[i])) << "call " << i << ", group " << order[i];
    }
  });
}

TEST(queues, a_rank_that_is_lost_ends_all_that_is_under_way) {
  for (const auto& hosts : kHosts) {
    const auto errors =
        rank_errors(4,
                    [](const Group& world) {
                      Cpu cpu;
                      const Group other = world.split(0, world.rank(), "other");
                      std::vector<float> x(4), y(4), z(4);
                      if (world.rank() == 2) fail("test", "on purpose");
                      Work work[] = {world.all_reduce(cpu.stream, tensor(x)), other.all_reduce(cpu.stream, tensor(y)),
                                     world.receive(cpu.stream, tensor(z), 2)};
                      for (auto& w : work) EXPECT_THROW(w.wait(), PeerLost);
                      EXPECT_THROW(other.blocking().barrier(cpu.stream), PeerLost) << "and what comes later";
                      world.barrier(cpu.stream).wait();
                    },
                    {.deadline_seconds = 60, .hosts = hosts, .on_lost = {}});
    for (std::size_t r = 0; r < 4; ++r)
      EXPECT_NE(errors[r].find("on purpose"), std::string::npos) << r << ": " << errors[r];
  }
}

/// The watch reports one collective for each rank: the one that has been under way for the longest time.
TEST(queues, the_ledger_names_the_oldest_call_that_is_under_way) {
  std::atomic<int> allowed = 0;  // calls that rank 1 joins
  run_ranks(2, [&](const Group& world) {
    Cpu cpu;
    const Group a = world.split(0, world.rank(), "a"), b = world.split(0, world.rank(), "b");
    std::vector<float> x(4), y(4);
    if (world.rank() == 1) {
      for (const auto* g : {&a, &b}) {
        while (allowed.load() == 0) std::this_thread::yield();
        --allowed;
        g->all_reduce(cpu.stream, tensor(x)).wait();
      }
      return;
    }
    const auto shows = [&](std::string_view group, Phase phase) {
      const auto until = Clock::now() + std::chrono::seconds(20);
      for (LedgerEntry now; Clock::now() < until; std::this_thread::yield())
        if (now = world.ledger().collective(); now.phase == phase && now.group == group) return true;
      return false;
    };
    Work first = a.all_reduce(cpu.stream, tensor(x));
    EXPECT_TRUE(shows("a", Phase::collective));
    Work second = b.all_reduce(cpu.stream, tensor(y));
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(std::string_view(world.ledger().collective().group), "a");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_FALSE(first.done() || second.done());
    ++allowed;
    EXPECT_TRUE(shows("b", Phase::collective));
    first.wait();
    ++allowed;
    second.wait();
    EXPECT_TRUE(shows("b", Phase::idle));
  });
}

TEST(turn, is_of_one_thread_at_a_time_and_goes_round) {
  Turn turn;
  std::atomic<int> holders = 0;
  std::int64_t sum = 0;  // guarded by the turn
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        turn.take();
        for (int passed = 0; passed <= (t + i) % 3; ++passed) {
          EXPECT_EQ(holders.fetch_add(1), 0);
          ++sum;
          holders.fetch_sub(1);
          turn.pass();
        }
        turn.give();
      }
    });
  for (auto& t : threads) t.join();
  std::int64_t want = 0;
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 2000; ++i) want += (t + i) % 3 + 1;
  EXPECT_EQ(sum, want);
  EXPECT_FALSE(turn.wanted());
}

}  // namespace
}  // namespace hpcdl::comm
