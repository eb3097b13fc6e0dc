#include "hpcdl/pipe/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "hpcdl/error.h"
#include "hpcdl/pipe/every_shape_for_tests.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/order_file.h"

namespace hpcdl::pipe {
namespace {

Schedule lowered(std::string_view name = "1f1b", const PipeShape& shape = {3, 1, 4}) {
  return lower(make_schedule(schedule_kind(name), shape));
}

/// Of the first action of this kind on a rank, or of the one of a micro-batch.
std::size_t find(const Schedule& s, int rank, Act act, int micro = -1) {
  const auto& list = s.of_rank[static_cast<std::size_t>(rank)];
  const auto it = std::find_if(list.begin(), list.end(),
                               [&](const Action& a) { return a.act == act && (micro < 0 || a.micro == micro); });
  EXPECT_NE(it, list.end());
  return static_cast<std::size_t>(it - list.begin());
}

void expect_fault(const Schedule& s, std::string_view words) {
  const auto list = faults(s);
  ASSERT_FALSE(list.empty()) << words;
  EXPECT_NE(list.front().find(words), std::string::npos) << list.front();
}

TEST(check, finds_faults_of_compute_actions) {
  const auto order = [](const char* text) { return parse_order(text, "test"); };
  EXPECT_TRUE(faults(order("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1")).empty());
  expect_fault(order("0F0 0F1 0B0\n1F0 1B0 1F1 1B1"), "rank 0: the backward of stage 0, micro-batch 1 is missing");
  expect_fault(order("0F0 0F1 0B0 0B1 0B1\n1F0 1B0 1F1 1B1"),
               "rank 0, action 4: the backward of stage 0, micro-batch 1 is there twice, first at rank 0, action 3");
  expect_fault(order("0F0 0F1 0B0 0B1 1B0\n1F0 1F1 1B1"), "belongs to rank 1");
  expect_fault(order("0F0 0F1 0B0 0I1\n1F0 1B0 1F1 1B1"), "the weight gradient of stage 0, micro-batch 1 is missing");
  expect_fault(order("0F0 0F1 0B0 0B1 0W1\n1F0 1B0 1F1 1B1"), "is there as a whole and in halves");
  expect_fault(order("0F0 0B1 0B0 0F1\n1F0 1B0 1F1 1B1"),
               "rank 0, action 1: the backward of stage 0, micro-batch 1 comes before the forward");
  expect_fault(order("0F0 0W0 0I0\n1F0 1I0 1W0"), "comes before the input gradient");
  auto impossible = order("0F0 0B0");
  impossible.of_rank[0].push_back({.act = Act::forward, .stage = 3, .micro = 0});
  expect_fault(impossible, "there is no stage 3");
  impossible.of_rank[0].back() = {.act = Act::forward, .stage = 0, .micro = 7};
  expect_fault(impossible, "micro-batches 0 to 0");
}

/// A stage would add the gradients of its micro-batches in another order.
TEST(check, finds_micro_batches_out_of_turn) {
  const auto first = [](const char* text) { return out_of_turn(parse_order(text, "test")); };
  EXPECT_EQ(first("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), "");
  EXPECT_EQ(first("0F0 0F1 0I0 0I1 0W0 0W1\n1F0 1I0 1F1 1B1 1W0"),
            "rank 1, action 4: the weight gradient of stage 1, micro-batch 0 comes after the backward of stage 1, "
            "micro-batch 1");
  EXPECT_EQ(
      first("0F0 0F1 0I0 0I1 0W1 0W0\n1F0 1B0 1F1 1B1"),
      "rank 0, action 5: the weight gradient of stage 0, micro-batch 0 comes after the weight gradient of stage 0, "
      "micro-batch 1");
  EXPECT_NE(first("0F1 0F0 0B0 0B1"), "");
  EXPECT_NE(first("0F0 0F1 0B1 0B0"), "");
}

TEST(check, finds_a_deadlock_of_an_order_and_names_the_cycle) {
  // Rank 0 wants the gradient of micro-batch 0 before it computes micro-batch 1, which rank 1 computes first.
  const auto s = parse_order("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", "test");
  EXPECT_TRUE(faults(s).empty());
  const auto cycle = deadlock(s, Wiring::links);
  ASSERT_EQ(cycle.size(), 4u);
  for (const char* node : {"rank 0, action 1: the backward of stage 0, micro-batch 0",
                           "rank 0, action 2: the forward of stage 0, micro-batch 1",
                           "rank 1, action 1: the forward of stage 1, micro-batch 1",
                           "rank 1, action 2: the backward of stage 1, micro-batch 0"})
    EXPECT_EQ(std::count(cycle.begin(), cycle.end(), node), 1) << node;
  try {
    lower(s);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("the order is a deadlock: rank"), std::string::npos) << e.what();
  }
}

TEST(check, finds_missing_doubled_and_impossible_transfers) {
  auto s = lowered();
  s.of_rank[0].erase(s.of_rank[0].begin() + static_cast<std::ptrdiff_t>(find(s, 0, Act::send)));
  expect_fault(s, "rank 0: the send of an activation from stage 0 to stage 1, micro-batch 0 is missing");
  s = lowered();
  s.of_rank[1].push_back(s.of_rank[1][find(s, 1, Act::receive)]);
  expect_fault(s, "the receive of an activation from stage 0 by stage 1, micro-batch 0 is there twice");
  s = lowered();
  s.of_rank[0][find(s, 0, Act::send)].peer = 2;
  expect_fault(s, "stage 0 exchanges nothing with stage 2");
  s = lowered();
  const auto at = find(s, 1, Act::receive);
  std::swap(s.of_rank[1][at], s.of_rank[1][find(s, 1, Act::forward)]);
  expect_fault(s, "comes before the receive");
  s = lowered();
  std::erase_if(s.of_rank[2], [](const Action& a) { return a.act == Act::update; });
  expect_fault(s, "the update of stage 2 is missing");
}

TEST(check, finds_memory_that_is_still_in_use) {
  auto s = lowered();
  for (auto& a : s.of_rank[0])
    if (computes(a.act) && a.micro == 1) a.slot = s.of_rank[0][find(s, 0, Act::forward, 0)].slot;
  expect_fault(s, "the forward of stage 0, micro-batch 1 takes slot 0, which micro-batch 0 still needs");
  s = lowered();
  s.of_rank[0][find(s, 0, Act::forward)].slot = 9;
  expect_fault(s, "names slot 9 of 3");
  s = lowered();
  s.of_rank[1][find(s, 1, Act::backward, 1)].slot ^= 1;
  expect_fault(s, "which does not hold its micro-batch");
}

/// Sends in one order and receives in another: they wait for each other where a link is one queue.
TEST(check, finds_crossed_transfers) {
  auto s = lowered("gpipe");
  std::vector<std::size_t> sends;
  for (std::size_t i = 0; i < s.of_rank[0].size(); ++i)
    if (s.of_rank[0][i].act == Act::send) sends.push_back(i);
  // The second send comes first: after its forward, so only the two receives are in the wrong order.
  const auto first = s.of_rank[0][sends[0]];
  s.of_rank[0].erase(s.of_rank[0].begin() + static_cast<std::ptrdiff_t>(sends[0]));
  s.of_rank[0].insert(s.of_rank[0].begin() + static_cast<std::ptrdiff_t>(sends[1]), first);
  EXPECT_TRUE(faults(s).empty());
  for (const auto wiring : {Wiring::links, Wiring::chain, Wiring::blocking}) {
    const auto cycle = deadlock(s, wiring);
    ASSERT_FALSE(cycle.empty());
    EXPECT_NE(cycle.front().find(" with "), std::string::npos) << "a transfer has two ends: " << cycle.front();
  }
}

/// The naive order: what an action needs is received right before it, and its result sent right after it. Each rank
/// then waits with a send for the receive of the other one, unless something buffers it.
TEST(check, finds_receives_that_are_posted_too_late_for_rendezvous) {
  auto s = lowered("1f1b", {2, 1, 4});
  const auto at = [&](int micro) { return find(s, 1, Act::receive, micro); };
  // The receive of micro-batch 1 goes from before the backward of micro-batch 0 to after the send of its gradient.
  auto& list = s.of_rank[1];
  const auto receive = list[at(1)];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(at(1)));
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(find(s, 1, Act::send, 0)) + 1, receive);
  ASSERT_TRUE(faults(s).empty()) << faults(s).front();
  EXPECT_TRUE(deadlock(s, Wiring::links).empty()) << "each direction is a queue of its own";
  EXPECT_TRUE(deadlock(lowered("1f1b", {2, 1, 4}), Wiring::chain).empty());
  const auto& first = s.of_rank[0];
  const auto sent = find(s, 0, Act::send, 1), received = find(s, 0, Act::receive, 0);
  ASSERT_LT(sent, received) << text(first[sent]);
  EXPECT_FALSE(deadlock(s, Wiring::chain).empty());
  EXPECT_FALSE(deadlock(s, Wiring::blocking).empty());
}

TEST(check, finds_a_receive_that_is_posted_too_early) {
  auto s = lowered("1f1b", {2, 1, 4});
  // Rank 0 waits for its first gradient before it sends what rank 1 needs for it.
  auto& list = s.of_rank[0];
  const auto receive = list[find(s, 0, Act::receive, 0)];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(s, 0, Act::receive, 0)));
  list.insert(list.begin(), receive);
  ASSERT_TRUE(faults(s).empty()) << faults(s).front();
  EXPECT_TRUE(deadlock(s, Wiring::links).empty());
  EXPECT_FALSE(deadlock(s, Wiring::chain).empty());
  EXPECT_FALSE(deadlock(s, Wiring::blocking).empty());
}

/// Every action of every schedule: left out, doubled, or of another micro-batch, it is found.
TEST(check, finds_every_planted_fault) {
  for_every_schedule(3, 2, 3, [](const ScheduleKind& kind, const PipeShape& shape) {
    const auto good = lower(make_schedule(kind, shape));
    for (std::size_t rank = 0; rank < good.of_rank.size(); ++rank)
      for (std::size_t i = 0; i < good.of_rank[rank].size(); ++i) {
        const auto& a = good.of_rank[rank][i];
        if (a.act == Act::load || a.act == Act::store) continue;
        const auto where = static_cast<std::ptrdiff_t>(i);
        auto bad = good;
        bad.of_rank[rank].erase(bad.of_rank[rank].begin() + where);
        EXPECT_FALSE(faults(bad).empty()) << kind.name << ": left out " << text(a);
        bad = good;
        bad.of_rank[rank].insert(bad.of_rank[rank].begin() + where, a);
        EXPECT_FALSE(faults(bad).empty()) << kind.name << ": twice " << text(a);
        bad = good;
        ++bad.of_rank[rank][i].micro;
        EXPECT_FALSE(faults(bad).empty()) << kind.name << ": another micro-batch of " << text(a);
      }
  });
}

}  // namespace
}  // namespace hpcdl::pipe
