// Schedules whose ranks divide a vocabulary.

#include "hpcdl/pipe/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/pipe/check.h"
#include "hpcdl/pipe/every_shape_for_tests.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/order_file.h"
#include "hpcdl/pipe/partition.h"
#include "hpcdl/pipe/simulate.h"

namespace hpcdl::pipe {
namespace {

/// Calls f(orders, passes, label) for every schedule that keeps its stages, with all kinds of passes.
template <class F> void for_every_division(int ranks, int chunks, int micros, F f) {
  for_every_schedule(ranks, chunks, micros, [&](const ScheduleKind& kind, const PipeShape& shape) {
    if (kind.name == "round_robin") return;
    for (const VocabularyPasses& passes : {VocabularyPasses{1, false}, {2, false}, {2, true}})
      f(make_schedule(kind, shape, passes), passes,
        std::string(kind.name) + " " + std::to_string(shape.ranks) + " x " + std::to_string(shape.chunks) + " x " +
            std::to_string(shape.micros) + ", barriers " + std::to_string(passes.barriers));
  });
}

TEST(pipe_vocabulary, every_schedule_has_neither_faults_nor_deadlocks) {
  for_every_division(5, 3, 9, [](const Schedule& orders, const VocabularyPasses&, const std::string& label) {
    const auto wrong = faults(orders);
    ASSERT_TRUE(wrong.empty()) << label << ": " << wrong.front();
    const auto s = lower(orders);
    const auto after = faults(s);
    ASSERT_TRUE(after.empty()) << label << ": " << after.front();
    for (const auto wiring : {Wiring::links, Wiring::chain, Wiring::blocking})
      ASSERT_TRUE(deadlock(s, wiring).empty()) << label;
  });
}

/// So gradients are added in the same order whatever the schedule.
TEST(pipe_vocabulary, passes_come_in_the_order_of_micro_batches) {
  for_every_division(4, 2, 7, [](const Schedule& orders, const VocabularyPasses& passes, const std::string& label) {
    for (const auto& list : orders.of_rank)
      for (const Act act : {Act::lookup, Act::logits, Act::loss, Act::lookup_gradient}) {
        int next = 0;
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (list[i].act != act) continue;
          ASSERT_EQ(list[i].micro, next++) << label;
          const bool later = std::any_of(list.begin() + static_cast<std::ptrdiff_t>(i), list.end(),
                                         [](const Action& a) { return a.act == Act::loss; });
          ASSERT_FALSE(passes.tied && act == Act::lookup_gradient && later) << label;
        }
        ASSERT_EQ(next, orders.micros) << label;
      }
  });
}

TEST(pipe_vocabulary, a_pass_goes_forward_through_all_ranks) {
  const auto s = forward_only(make_schedule(schedule_kind("1f1b"), {.ranks = 3, .micros = 4}, {.barriers = 2}));
  for (int rank = 0; rank < 3; ++rank) {
    std::string letters;
    for (const auto& a : s.of_rank[static_cast<std::size_t>(rank)]) letters += act_letter(a.act);
    EXPECT_EQ(letters, rank == 0 ? "EPFSHVCT" : rank == 1 ? "EPRFSHVCT" : "EPRFHVCT");
  }
}

std::vector<PartCost> layers(int count) {
  std::vector<PartCost> list(static_cast<std::size_t>(count));
  for (auto& l : list) l.frame_bytes = l.activation_bytes = l.gradient_bytes = 8;
  return list;
}

constexpr VocabularyCost kShare{.lookup = 0,
                                .logits = 2,
                                .loss = 4,
                                .lookup_gradient = 0,
                                .state_bytes = 1000,
                                .rows_bytes = 8,
                                .head_bytes = 100,
                                .gradient_bytes = 8,
                                .hidden_bytes = 8,
                                .statistics_bytes = 3};

TEST(pipe_vocabulary, a_rank_alone_takes_the_sum) {
  const auto s = lower(make_schedule(schedule_kind("1f1b"), {.ranks = 1, .micros = 5}, {.barriers = 2}));
  const auto result = simulate(s, layers(1), {}, Wiring::links, kShare);
  EXPECT_DOUBLE_EQ(result.makespan, 5 * (3 + 6));
  EXPECT_DOUBLE_EQ(result.bubble, 0);
}

/// Bytes by the formulas of ranks that send something to one of them or from one of them.
TEST(pipe_vocabulary, counts_what_is_sent_and_kept) {
  const int micros = 6;
  for (const int barriers : {1, 2}) {
    const auto s = lower(make_schedule(schedule_kind("1f1b"), {.ranks = 3, .micros = micros}, {.barriers = barriers}));
    const auto result = simulate(s, layers(3), {}, Wiring::links, kShare);
    const int gradients = barriers == 2 ? 8 : 0;
    const int first = 8 + 2 * 8, middle = 8 + 8 + 8 + gradients,
              last = 8 + 2 * 8 + 8;  // activations and gradients, too
    EXPECT_EQ(result.ranks[0].wire_bytes, micros * (first + 2 * 3 + gradients));
    EXPECT_EQ(result.ranks[1].wire_bytes, micros * (middle + 2 * 3));
    EXPECT_EQ(result.ranks[2].wire_bytes, micros * (last + 2 * 3));
    for (const auto& use : result.ranks) EXPECT_GT(use.peak_bytes, 1000);
    EXPECT_LE(s.shares[1].logits, 3);
  }
}

/// Of a head that takes as long as eight layers.
TEST(pipe_vocabulary, balances_a_large_head) {
  for (const int ranks : {2, 4})
    for (const int barriers : {1, 2}) {
      const int micros = 16;
      auto whole = layers(8);
      whole.push_back({.forward = 8, .input_gradient = 8, .weight_gradient = 8});
      const auto kind = schedule_kind("1f1b");
      const auto plain = make_schedule(kind, {.ranks = ranks, .micros = micros});
      const auto on_one = simulate(lower(plain), stages_of(whole, best_partition(whole, ranks)));
      const double part = 8.0 / ranks;
      const VocabularyCost share{.lookup = 0, .logits = part, .loss = 2 * part};
      const auto divided = lower(make_schedule(kind, {.ranks = ranks, .micros = micros}, {.barriers = barriers}));
      const auto stages = stages_of(layers(8), best_partition(layers(8), ranks));
      const auto on_all = simulate(divided, stages, {}, Wiring::links, share);
      const double ideal = 16.0 * 3 * micros / ranks;
      EXPECT_LT(on_all.makespan, on_one.makespan) << ranks << ' ' << barriers;
      if (ranks == 4) {
        EXPECT_LT(on_all.makespan, 0.8 * on_one.makespan) << barriers;
      }
      EXPECT_LT(on_all.makespan, 1.35 * ideal) << ranks << ' ' << barriers;
    }
}

/// Four layers of 768 channels and a vocabulary of 131072, in multiply-adds for each token. Balance alone allows 1.56.
TEST(pipe_vocabulary, two_ranks_gain_what_balance_allows) {
  constexpr double kLayer = 12.0 * 768 * 768, kHead = 131072.0 * 768;
  const PartCost end{.forward = 0, .input_gradient = 0, .weight_gradient = 0},
      layer{.forward = kLayer, .input_gradient = kLayer, .weight_gradient = kLayer},
      head{.forward = kHead, .input_gradient = kHead, .weight_gradient = kHead};
  const std::vector<PartCost> whole = {end, layer, layer, layer, layer, head},
                              rest = {end, layer, layer, layer, layer, end};
  for (const char* name : {"1f1b", "gpipe", "zero_bubble"})
    for (const int barriers : {1, 2}) {
      const auto& kind = schedule_kind(name);
      const PipeShape shape{.ranks = 2, .micros = 16};
      const auto on_one = simulate(lower(make_schedule(kind, shape)), stages_of(whole, best_partition(whole, 2)));
      const VocabularyCost share{
          .lookup = 0, .logits = kHead / 2 * (barriers == 1 ? 2 : 1), .loss = kHead / 2 * (barriers == 1 ? 1 : 2)};
      const auto on_all = simulate(lower(make_schedule(kind, shape, VocabularyPasses{.barriers = barriers})),
                                   stages_of(rest, best_partition(rest, 2)), {}, Wiring::links, share);
      EXPECT_GT(on_one.makespan / on_all.makespan, 1.54) << name << ' ' << barriers;
      EXPECT_LT(on_all.bubble, 0.02) << name << ' ' << barriers;
    }
}

TEST(pipe_vocabulary, faults_name_the_pass) {
  const auto expect = [](auto change, const std::string& part) {
    auto s = make_schedule(schedule_kind("gpipe"), {.ranks = 2, .micros = 2}, {.barriers = 2});
    change(s);
    const auto wrong = faults(s, 1);
    ASSERT_FALSE(wrong.empty()) << part;
    EXPECT_NE(wrong.front().find(part), std::string::npos) << wrong.front();
  };
  const auto find = [](Schedule& s, int rank, Act act, int micro) {
    auto& list = s.of_rank[static_cast<std::size_t>(rank)];
    return std::find_if(list.begin(), list.end(), [&](const Action& a) { return a.act == act && a.micro == micro; });
  };
  expect([&](Schedule& s) { s.of_rank[1].erase(find(s, 1, Act::logits, 1)); },
         "the logits of rank 1, micro-batch 1 is missing");
  expect([&](Schedule& s) { s.of_rank[0].push_back(*find(s, 0, Act::loss, 0)); }, "is there twice");
  expect([&](Schedule& s) { s.of_rank[0].push_back(*find(s, 1, Act::loss, 0)); }, "belongs to rank 1");
  expect([&](Schedule& s) { std::iter_swap(find(s, 0, Act::logits, 0), find(s, 0, Act::loss, 0)); }, "which it needs");
  expect([&](Schedule& s) { std::iter_swap(find(s, 1, Act::loss, 0), find(s, 1, Act::backward, 0)); },
         "which it needs");
  expect([&](Schedule& s) { s.barriers = 0; }, "the ranks divide no vocabulary");
  expect([&](Schedule& s) { find(s, 0, Act::lookup, 0)->micro = 7; }, "micro-batches 0 to 1");
  auto lowered = lower(make_schedule(schedule_kind("1f1b"), {.ranks = 2, .micros = 4}, {.barriers = 2}));
  find(lowered, 0, Act::give_hidden, 1)->slot = find(lowered, 0, Act::give_hidden, 0)->slot;
  find(lowered, 0, Act::logits, 1)->slot = find(lowered, 0, Act::give_hidden, 0)->slot;
  EXPECT_FALSE(faults(lowered).empty());
}

TEST(pipe_vocabulary, refuses_what_it_cannot_divide) {
  const auto error = [](auto f) {
    try {
      f();
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error([] { make_schedule(schedule_kind("round_robin"), {.ranks = 2}, {}); }).find("host memory"),
            std::string::npos);
  const auto other = parse_order("1F0,1B0\n0F0,0B0\n", "test");
  EXPECT_NE(error([&] { with_vocabulary(other, {}); }).find("the first stage on rank 0, found it on rank 1"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::pipe
