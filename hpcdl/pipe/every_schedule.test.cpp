// Properties of every schedule with 1 to 16 ranks, 1 to 64 micro-batches and 1 to 4 chunks.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hpcdl/pipe/check.h"
#include "hpcdl/pipe/every_shape_for_tests.h"
#include "hpcdl/pipe/lower.h"

namespace hpcdl::pipe {
namespace {

std::string label(const ScheduleKind& kind, const PipeShape& shape) {
  return std::string(kind.name) + " " + std::to_string(shape.ranks) + " x " + std::to_string(shape.chunks) + " x " +
         std::to_string(shape.micros);
}

/// The most forwards of a rank whose last gradient is not computed yet: of all its stages, or of one of them.
int most_in_flight(const Schedule& s, int rank, int stage = -1) {
  int now = 0, most = 0;
  for (const auto& a : s.of_rank[static_cast<std::size_t>(rank)]) {
    if (stage >= 0 && a.stage != stage) continue;
    if (a.act == Act::forward) most = std::max(most, ++now);
    if (gives_weight_gradient(a.act)) --now;
  }
  return most;
}

/// How many micro-batches, each once per chunk, a rank keeps at most: from the papers (generate.h).
int frames_formula(const ScheduleKind& kind, const PipeShape& shape, int rank) {
  const int behind = shape.ranks - rank;  // ranks from this one to the end
  if (kind.name == "gpipe") return shape.chunks * shape.micros;
  if (kind.name == "1f1b") return std::min(shape.micros, behind);
  if (kind.name == "zero_bubble") return std::min(shape.micros, shape.ranks);
  if (kind.name == "zbv") return std::min(shape.micros, shape.ranks + behind - 1) + std::min(shape.micros, rank + 1);
  const int groups = std::max(1, shape.micros / shape.ranks), largest = (shape.micros + groups - 1) / groups;
  return std::min(shape.chunks * shape.micros, 2 * behind - 1 + (shape.chunks - 1) * largest);
}

TEST(every_schedule, has_neither_faults_nor_deadlocks_and_keeps_the_frames_of_its_formula) {
  int schedules = 0;
  for_every_schedule(16, 4, 64, [&](const ScheduleKind& kind, const PipeShape& shape) {
    ++schedules;
    const auto orders = make_schedule(kind, shape);
    const auto s = lower(orders);  // throws if an action is missing, doubled or impossible, or if there is a cycle
    // The strictest wiring: what waits for nothing here waits for nothing in the others.
    ASSERT_TRUE(deadlock(s, Wiring::blocking).empty()) << label(kind, shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      if (s.on_host) {
        for (int stage = rank; stage < shape.stages(); stage += shape.ranks)
          ASSERT_EQ(s.slots[static_cast<std::size_t>(stage)].frames, std::min(2, shape.micros)) << label(kind, shape);
        continue;
      }
      ASSERT_EQ(most_in_flight(orders, rank), frames_formula(kind, shape, rank)) << label(kind, shape) << ' ' << rank;
    }
    for (int stage = 0; stage < shape.stages() && !s.on_host; ++stage)
      ASSERT_EQ(s.slots[static_cast<std::size_t>(stage)].frames,
                most_in_flight(orders, orders.forward_rank[static_cast<std::size_t>(stage)], stage))
          << label(kind, shape) << " stage " << stage;
  });
  EXPECT_EQ(schedules, 16 * 64 * (4 + 1 + 3 + 1 + 1 + 4));
}

/// faults() examines memory and transfers only in lowered schedules, and is slower than the rest: fewer shapes.
TEST(every_schedule, is_lowered_without_faults) {
  for_every_schedule(7, 3, 15, [&](const ScheduleKind& kind, const PipeShape& shape) {
    const auto s = lower(make_schedule(kind, shape));
    const auto wrong = faults(s);
    ASSERT_TRUE(wrong.empty()) << label(kind, shape) << ": " << wrong.front();
  });
}

TEST(every_schedule, adds_gradients_in_the_order_of_micro_batches) {
  for_every_schedule(5, 3, 11, [&](const ScheduleKind& kind, const PipeShape& shape) {
    const auto s = make_schedule(kind, shape);
    for (const auto& list : s.of_rank) {
      std::vector<int> next(static_cast<std::size_t>(s.stages()));
      for (const auto& a : list)
        if (gives_weight_gradient(a.act)) {
          ASSERT_EQ(a.micro, next[static_cast<std::size_t>(a.stage)]++);
        }
    }
  });
}

}  // namespace
}  // namespace hpcdl::pipe
