#include "hpcdl/pipe/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "hpcdl/error.h"

namespace hpcdl::pipe {
namespace {

std::vector<PartCost> layers(const std::vector<double>& seconds) {
  std::vector<PartCost> list;
  for (const double s : seconds)
    list.push_back({.name = "layers." + std::to_string(list.size()),
                    .forward = s,
                    .input_gradient = 0,
                    .weight_gradient = 0,
                    .state_bytes = 100,
                    .frame_bytes = 10});
  return list;
}

double largest(const std::vector<PartCost>& all, const Partition& partition) {
  double most = 0;
  for (const auto& stage : stages_of(all, partition)) most = std::max(most, stage.seconds());
  return most;
}

/// Tries all splits.
double least_largest(const std::vector<PartCost>& all, int stages, std::size_t first = 0) {
  const std::size_t left = all.size() - first;
  if (stages == 1)
    return largest({all.begin() + static_cast<std::ptrdiff_t>(first), all.end()}, {static_cast<int>(left)});
  double best = HUGE_VAL, now = 0;
  for (std::size_t count = 1; count + static_cast<std::size_t>(stages) <= left + 1; ++count) {
    now += all[first + count - 1].seconds();
    best = std::min(best, std::max(now, least_largest(all, stages - 1, first + count)));
  }
  return best;
}

TEST(partition, is_as_good_as_the_best_of_all_splits) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<double> seconds(static_cast<std::size_t>(3 + round % 8));
    for (auto& s : seconds) s = 1 + static_cast<double>(random() % 100) * (random() % 4 == 0 ? 5 : 1);
    const auto all = layers(seconds);
    for (int stages = 1; stages <= static_cast<int>(all.size()); ++stages) {
      const auto best = best_partition(all, stages);
      ASSERT_EQ(best.size(), static_cast<std::size_t>(stages));
      EXPECT_GE(*std::min_element(best.begin(), best.end()), 1);
      EXPECT_NEAR(largest(all, best), least_largest(all, stages), 1e-9);
      EXPECT_LE(largest(all, best), largest(all, even_partition(static_cast<int>(all.size()), stages)) + 1e-9);
    }
  }
}

TEST(partition, weighs_the_head_and_among_equals_takes_the_most_even) {
  EXPECT_EQ(best_partition(layers({0.1, 1, 1, 1, 1, 2.9}), 2), (Partition{4, 2}));
  EXPECT_EQ(best_partition(layers({1, 1, 1, 1, 1, 1, 4}), 3), (Partition{3, 3, 1}));  // 4 2 1 has the same largest
  EXPECT_EQ(best_partition(layers({0, 0, 5}), 3), (Partition{1, 1, 1}));
}

TEST(partition, respects_a_limit_of_memory) {
  const auto all = layers({1, 1, 1, 1, 1, 1});
  EXPECT_EQ(best_partition(all, 2), (Partition{3, 3}));
  // The first stage has four frames: each of its layers takes 140, of the second one 110.
  EXPECT_EQ(best_partition(all, 2, {.bytes = 440, .frames = {4, 1}}), (Partition{3, 3}));
  EXPECT_EQ(best_partition(layers({1, 1, 1, 1, 1}), 2, {.bytes = 330, .frames = {4, 1}}), (Partition{2, 3}));
  try {
    best_partition(all, 2, {.bytes = 400, .frames = {4, 1}});
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("it takes at least 420 B"), std::string::npos) << e.what();
  }
}

TEST(partition, refuses_more_stages_than_layers) {
  EXPECT_THROW(best_partition(layers({1, 1}), 3), UsageError);
  EXPECT_THROW(even_partition(2, 3), UsageError);
}

TEST(partition, even_knows_no_costs) {
  EXPECT_EQ(even_partition(6, 2), (Partition{3, 3}));
  EXPECT_EQ(even_partition(14, 4), (Partition{4, 3, 3, 4}));
  EXPECT_EQ(even_partition(3, 3), (Partition{1, 1, 1}));
  EXPECT_EQ(even_partition(4, 3), (Partition{2, 1, 1}));
}

TEST(partition, sums_up_stages) {
  auto all = layers({1, 2, 3});
  all[0].activation_bytes = 1, all[1].activation_bytes = 2, all[1].gradient_bytes = 3, all[2].gradient_bytes = 4;
  const auto stages = stages_of(all, {2, 1});
  EXPECT_EQ(stages[0].name, "layers.0 to layers.1");
  EXPECT_EQ(stages[0].seconds(), 3);
  EXPECT_EQ(stages[0].activation_bytes, 2);
  EXPECT_EQ(stages[1].gradient_bytes, 4);
  EXPECT_EQ(stages[0].state_bytes, 200);
}

}  // namespace
}  // namespace hpcdl::pipe
