#include "hpcdl/pipe/simulate.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hpcdl/error.h"
#include "hpcdl/pipe/every_shape_for_tests.h"
#include "hpcdl/pipe/lower.h"
#include "hpcdl/pipe/order_file.h"

namespace hpcdl::pipe {
namespace {

constexpr double kTiny = 1e-9;

Simulation simulated(std::string_view name, const PipeShape& shape, const Rates& rates = {},
                     Wiring wiring = Wiring::links) {
  return simulate(lower(make_schedule(schedule_kind(name), shape)), equal_stages(shape.ranks, shape.chunks), rates,
                  wiring);
}

TEST(simulate, agrees_with_the_closed_forms) {
  for_every_schedule(8, 4, 33, [](const ScheduleKind& kind, const PipeShape& shape) {
    const double p = shape.ranks, m = shape.micros, v = shape.chunks;
    const auto result = simulated(kind.name, shape);
    const auto expect = [&](double makespan) {
      EXPECT_NEAR(result.makespan, makespan, kTiny) << kind.name << ' ' << p << ' ' << v << ' ' << m;
      EXPECT_NEAR(result.bubble, 1 - 3 * m / makespan, kTiny);
    };
    if (kind.name == "gpipe" && v == 1) expect(3 * (m + p - 1));
    if (kind.name == "gpipe" && m >= p) expect(3 * m + 3 * (p - 1) / v);
    if (kind.name == "1f1b") {
      expect(3 * (m + p - 1));
      EXPECT_NEAR(result.bubble, (p - 1) / (m + p - 1), kTiny);
    }
    if (kind.name == "interleaved" && m >= p) expect(3 * m + 3 * (p - 1) / v);
    if (kind.name == "zero_bubble" && m >= p) expect(3 * m + p - 1);
    if (kind.name == "zbv" && m >= 2 * p) expect(3 * m + (p - 1) / 2);
  });
}

/// Turns that take the same time follow each other without gaps: only the last rank begins late, by p - 1 of them.
TEST(simulate, round_robin_waits_only_at_the_begin) {
  for (int p = 1; p <= 6; ++p)
    for (int v = 1; v <= 3; ++v)
      for (int m = p; m <= 5 * p; m += p) {
        std::vector<PartCost> stages(static_cast<std::size_t>(p * v),
                                     {.forward = 1.0 / v, .input_gradient = 1.0 / v, .weight_gradient = 0});
        const auto s = lower(make_schedule(schedule_kind("round_robin"), {p, v, m}));
        EXPECT_NEAR(simulate(s, stages).makespan, 2.0 * m + (p - 1.0) / v, kTiny) << p << ' ' << v << ' ' << m;
      }
}

TEST(simulate, gives_the_gains_that_the_papers_state) {
  const double one = simulated("1f1b", {2, 1, 4}).makespan;
  EXPECT_NEAR(one / simulated("zero_bubble", {2, 1, 4}).makespan, 1.154, 5e-4);
  EXPECT_NEAR(one / simulated("interleaved", {2, 2, 4}).makespan, 1.111, 5e-4);
  EXPECT_NEAR(2 * 3 * 16 / simulated("1f1b", {2, 1, 16}).makespan, 1.88, 5e-3);
}

TEST(simulate, never_takes_less_than_the_work_of_the_busiest_rank) {
  for_every_schedule(6, 3, 9, [](const ScheduleKind& kind, const PipeShape& shape) {
    auto stages = equal_stages(shape.ranks, shape.chunks);
    for (std::size_t i = 0; i < stages.size(); ++i) stages[i].forward *= 1 + 0.37 * static_cast<double>(i % 3);
    const auto s = lower(make_schedule(kind, shape));
    double before = 0;
    for (const auto wiring : {Wiring::links, Wiring::chain, Wiring::blocking}) {
      const auto result = simulate(s, stages, {.link = {0.1, 10}, .host = {0.05, 10}}, wiring);
      double busy = 0;
      for (const auto& rank : result.ranks) {
        EXPECT_LE(rank.busy, result.makespan + kTiny);
        EXPECT_NEAR(rank.busy + rank.idle, result.makespan, kTiny);
        busy += rank.busy;
      }
      double work = 0;
      for (const auto& stage : stages) work += shape.micros * stage.seconds();
      EXPECT_NEAR(busy, work, 1e-6);
      EXPECT_GE(result.makespan, before - kTiny) << "a stricter wiring cannot be faster";
      before = result.makespan;
    }
  });
}

TEST(simulate, every_action_begins_after_those_before_it_and_as_soon_as_one_of_them_ends) {
  const auto s = lower(make_schedule(schedule_kind("zbv"), {3, 2, 7}));
  const auto stages = equal_stages(3, 2);
  const auto result = simulate(s, stages, {.link = {0.03, 1e9}, .host = {}});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    double end = 0;
    for (std::size_t i = 0; i < s.of_rank[rank].size(); ++i) {
      if (!computes(s.of_rank[rank][i].act)) continue;
      EXPECT_GE(result.spans[rank][i].begin, end - kTiny);
      end = result.spans[rank][i].end;
    }
    EXPECT_LE(end, result.makespan + kTiny);
  }
}

TEST(simulate, waits_for_transfers_by_hand) {
  // Two ranks, one micro-batch: forward, transfer, forward, backward, transfer, backward.
  std::vector<PartCost> stages(2);
  stages[0] = {.forward = 2, .input_gradient = 3, .weight_gradient = 4, .activation_bytes = 50};
  stages[1] = {.forward = 5, .input_gradient = 6, .weight_gradient = 7, .gradient_bytes = 30};
  const Rates rates{.link = {0.5, 10}, .host = {}};
  const auto whole = simulate(lower(parse_order("0F0 0B0\n1F0 1B0\n", "test")), stages, rates);
  EXPECT_NEAR(whole.makespan, 2 + 5.5 + 5 + 13 + 3.5 + 7, kTiny);
  const auto halves = simulate(lower(parse_order("0F0 0I0 0W0\n1F0 1I0 1W0\n", "test")), stages, rates);
  EXPECT_NEAR(halves.makespan, 2 + 5.5 + 5 + 6 + 3.5 + 7, kTiny) << "only the input's gradient is waited for";
  EXPECT_EQ(whole.ranks[0].wire_bytes, 50);
  EXPECT_EQ(whole.ranks[1].wire_bytes, 30);
  EXPECT_NEAR(whole.ranks[1].idle, whole.makespan - 18, kTiny);
}

TEST(simulate, counts_memory_and_bytes_on_the_wire) {
  std::vector<PartCost> stages(4);
  for (auto& s : stages)
    s = {.state_bytes = 1000, .value_bytes = 250, .frame_bytes = 100, .activation_bytes = 10, .gradient_bytes = 8};
  const auto result = simulate(lower(make_schedule(schedule_kind("1f1b"), {4, 1, 6})), stages);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& use = result.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(use.frames, 4 - rank);
    EXPECT_EQ(use.wire_bytes, 6 * ((rank < 3) * 10 + (rank > 0) * 8));
    EXPECT_EQ(use.peak_bytes, 1000 + 100 * (4 - rank) + 2 * ((rank > 0) * 10 + (rank < 3) * 8));
    EXPECT_EQ(use.host_bytes, 0);
  }
  const auto host = simulate(lower(make_schedule(schedule_kind("round_robin"), {2, 2, 6})), stages);
  std::int64_t bytes = 0;
  for (const auto& use : host.ranks) bytes += use.host_bytes;
  // Each stage in each of three rounds: frames of six micro-batches out and in, values in for both turns (the last
  // stage too: its two turns are on different ranks), gradients out.
  EXPECT_EQ(bytes, 4 * (2 * 6 * 100 + 3 * (2 + 1) * 250));
}

TEST(simulate, refuses_what_it_cannot_run) {
  const auto orders = make_schedule(schedule_kind("1f1b"), {2, 1, 2});
  EXPECT_THROW(simulate(orders, equal_stages(2, 1)), Error);
  EXPECT_THROW(simulate(lower(orders), equal_stages(3, 1)), Error);
}

}  // namespace
}  // namespace hpcdl::pipe
