#include "hpcdl/models/stream_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "hpcdl/core/error.h"

namespace hpcdl::models {
namespace {

std::int64_t streamed(const StreamPlan& p) { return std::ranges::count(p.streams, true); }

TEST(stream_plan, all_layers_stay_if_they_fit) {
  const std::vector<std::int64_t> layers(5, 100);
  const auto p = plan_streaming(70, layers, 570);
  EXPECT_EQ(streamed(p), 0);
  EXPECT_EQ(p.blocks, 0);
  EXPECT_EQ(p.bytes, 570);
}

TEST(stream_plan, as_many_layers_stay_as_fit) {
  const std::vector<std::int64_t> layers(24, 100);
  for (std::int64_t ram = 270; ram < 2470; ram += 7) {
    const auto p = plan_streaming(70, layers, ram);
    const auto want = (ram - 70) / 100 - 2;  // besides the two blocks
    EXPECT_EQ(24 - streamed(p), want) << ram;
    EXPECT_EQ(p.bytes, 70 + 100 * (want + 2));
    EXPECT_EQ(p.blocks, 2);
    // Spread evenly: runs of layers of a kind differ by one at most.
    const auto many = streamed(p);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto before = std::count(p.streams.begin(), p.streams.begin() + static_cast<std::ptrdiff_t>(i), true);
      EXPECT_EQ(before, static_cast<std::int64_t>(i) * many / 24);
    }
  }
}

TEST(stream_plan, layers_of_different_sizes_never_take_more) {
  std::vector<std::int64_t> layers;
  for (int i = 0; i < 13; ++i) layers.push_back(50 + i * 37 % 101);
  const auto all = std::accumulate(layers.begin(), layers.end(), std::int64_t{5});
  for (auto ram = 5 + 2 * std::ranges::max(layers); ram <= all; ++ram)
    EXPECT_LE(plan_streaming(5, layers, ram).bytes, ram);
}

TEST(stream_plan, says_the_least_that_works) {
  const std::vector<std::int64_t> layers(4, 1000);
  try {
    plan_streaming(500, layers, 2499);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("(2500 bytes)"), std::string::npos) << e.what();
  }
  EXPECT_EQ(streamed(plan_streaming(500, layers, 2500)), 4);
  try {  // two layers are never worth a ring
    plan_streaming(500, std::vector<std::int64_t>(2, 1000), 2499);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("(2500 bytes)"), std::string::npos) << e.what();
  }
}

TEST(stream_plan, as_many_experts_as_fit_beside_the_rest) {
  // 4 layers of 8 experts.
  EXPECT_EQ(plan_experts(500, 10, 8, 32, 579), (ExpertPlan{.experts = 0, .bytes = 580}));
  EXPECT_EQ(plan_experts(500, 10, 8, 32, 400), (ExpertPlan{.experts = 0, .bytes = 580}));
  EXPECT_EQ(plan_experts(500, 10, 8, 32, 580), (ExpertPlan{.experts = 8, .bytes = 580}));
  EXPECT_EQ(plan_experts(500, 10, 8, 32, 599), (ExpertPlan{.experts = 9, .bytes = 590}));
  EXPECT_EQ(plan_experts(500, 10, 8, 32, 9999), (ExpertPlan{.experts = 32, .bytes = 820}));
  EXPECT_EQ(plan_experts(500, 0, 0, 0, 9999), ExpertPlan()) << "a model without experts";
}

}  // namespace
}  // namespace hpcdl::models
