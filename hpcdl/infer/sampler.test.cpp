#include "hpcdl/infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {
namespace {

std::vector<double> frequencies(const std::vector<float>& logits, SamplingOptions o, int draws = 20000) {
  std::vector<double> f(logits.size());
  for (int i = 0; i < draws; ++i)
    f[static_cast<std::size_t>(sample(logits, o, static_cast<std::uint64_t>(i)))] += 1.0 / draws;
  return f;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3.5f, 2}, {.temperature = 2, .top_k = 1}, 7), 2);
  constexpr float kLeast = std::numeric_limits<float>::denorm_min(), kLowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(sample(std::vector<float>{-3, -2, -2, -HUGE_VALF}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-kLeast, -0.0f, 0.0f, kLowest}, {}, 0), 1) << "zeros are equal";
  EXPECT_EQ(sample(std::vector<float>{-kLeast, 0.0f, kLeast, -1}, {}, 0), 2);
  EXPECT_EQ(sample(std::vector<float>{-HUGE_VALF, kLowest}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{1, -kLowest, 2}, {}, 0), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{0, std::log(2.0f), std::log(5.0f), -std::numeric_limits<float>::infinity()};
  const auto f = frequencies(logits, {.temperature = 1, .seed = 3});
  // The standard deviation of a frequency over 20000 draws is at most 0.0036; the bound is five of them.
  EXPECT_NEAR(f[0], 1.0 / 8, 0.018);
  EXPECT_NEAR(f[1], 2.0 / 8, 0.018);
  EXPECT_NEAR(f[2], 5.0 / 8, 0.018);
  EXPECT_EQ(f[3], 0);
  const auto cold = frequencies(logits, {.temperature = 0.5f, .seed = 3});
  EXPECT_NEAR(cold[2], 25.0 / 30, 0.018);
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  const std::vector<float> logits{std::log(1.0f), std::log(4.0f), std::log(3.0f), std::log(2.0f)};
  const auto k = frequencies(logits, {.temperature = 1, .top_k = 2, .seed = 1});
  EXPECT_EQ(k[0] + k[3], 0);
  EXPECT_NEAR(k[1], 4.0 / 7, 0.018);
  const auto p = frequencies(logits, {.temperature = 1, .top_p = 0.5f, .seed = 1});  // 0.4 + 0.3 reach it
  EXPECT_EQ(p[0] + p[3], 0);
  EXPECT_NEAR(p[2], 3.0 / 7, 0.018);
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits(50, 0.0f);
  bool differs = false;
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(sample(logits, {.temperature = 1, .seed = 9}, i), sample(logits, {.temperature = 1, .seed = 9}, i));
    differs |= sample(logits, {.temperature = 1, .seed = 9}, i) != sample(logits, {.temperature = 1, .seed = 10}, i);
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, RefusesNonsense) {
  for (const float bad : {NAN, -NAN, HUGE_VALF}) EXPECT_THROW(sample(std::vector<float>{1, bad}, {}, 0), Error) << bad;
  for (const float temperature : {0.0f, 1.0f})
    EXPECT_THROW(sample(std::vector<float>(3, -INFINITY), {.temperature = temperature}, 0), Error);
  EXPECT_THROW((SamplingOptions{.temperature = -1}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.temperature = NAN}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.temperature = INFINITY}).check(), UsageError) << "0 / 0 for a logit of -infinity";
  EXPECT_THROW((SamplingOptions{.top_k = -1}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.top_p = 0}).check(), UsageError);
}

}  // namespace
}  // namespace hpcdl::infer
