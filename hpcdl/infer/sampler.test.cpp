#include "hpcdl/infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

std::int32_t sample(std::vector<float> logits, const SamplingOptions& o, std::uint64_t index) {
  return Sampler().sample(logits, o, {.index = index});
}

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
  EXPECT_THROW((SamplingOptions{.min_p = 1.5f}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.typical_p = 0}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.repetition_penalty = 0}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.logit_bias = {{1, NAN}}}).check(), UsageError);
  EXPECT_THROW((SamplingOptions{.stop_ids = {4}}).check(4), UsageError);
  EXPECT_THROW((SamplingOptions{.logprobs = -2}).check(), UsageError);
}

TEST(Sampler, min_p_and_typical_p_cut_by_probability) {
  const std::vector<float> logits{std::log(1.0f), std::log(5.0f), std::log(2.0f), std::log(2.0f)};
  const auto m = frequencies(logits, {.temperature = 1, .min_p = 0.3f, .seed = 1});  // 0.4 of the best one, but not 0.2
  EXPECT_EQ(m[0], 0);
  EXPECT_NEAR(m[1], 5.0 / 9, 0.018);
  // The information of the tokens is 2.30, 0.69, 1.61 and 1.61, the entropy 1.22: the nearest are tokens 2 and 3.
  const auto t = frequencies(logits, {.temperature = 1, .typical_p = 0.39f, .seed = 1});
  EXPECT_EQ(t[0] + t[1], 0);
  EXPECT_NEAR(t[2], 0.5, 0.018);
}

/// Few, many or all tokens remain, which takes different ways through the sampler.
TEST(Sampler, cuts_a_large_vocabulary_as_a_sorted_list_says) {
  constexpr int kVocab = 5000;
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i)
    logits[static_cast<std::size_t>(i)] =
        std::floor(3 * static_cast<float>(Rng{1, 2}.normal(static_cast<std::uint64_t>(i)))) / 3;
  std::vector<std::pair<double, int>> order;
  for (int i = 0; i < kVocab; ++i) order.emplace_back(-std::exp(double{logits[static_cast<std::size_t>(i)]}), i);
  std::sort(order.begin(), order.end());
  for (const int k : {0, 1, 2, 7, 1024, 1025, 4999, 5000, 9000})
    for (const float p : {1.0f, 0.999f, 0.5f, 0.01f}) {
      double all = 0, sum = 0;
      const auto n = static_cast<std::size_t>(k == 0 ? kVocab : std::min(k, kVocab));
      for (std::size_t i = 0; i < n; ++i) all -= order[i].first;
      std::size_t left = 0;
      while (left < n && (left == 0 || sum < double{p} * all)) sum -= order[left++].first;
      std::vector<bool> may(kVocab);
      for (std::size_t i = 0; i < left; ++i) may[static_cast<std::size_t>(order[i].second)] = true;
      std::vector<bool> drawn(kVocab);
      for (std::uint64_t i = 0; i < 200; ++i) {
        const auto id = static_cast<std::size_t>(sample(logits, {.temperature = 1, .top_k = k, .top_p = p}, i));
        EXPECT_TRUE(may[id]) << "top-k " << k << ", top-p " << p << " drew " << id;
        drawn[id] = true;
      }
      const auto different = std::count(drawn.begin(), drawn.end(), true);
      EXPECT_GT(different, left > 1 ? 1 : 0) << "top-k " << k << ", top-p " << p;
    }
}

TEST(Sampler, penalties_lower_tokens_of_the_text) {
  TokenCounts counts;
  counts.add_prompt(std::vector<std::int32_t>{0, 1});
  counts.add_output(1), counts.add_output(1), counts.add_output(3);
  std::vector<float> logits{4, 4, 4, -4};
  RowRules rules;
  set_rules(rules, {.repetition_penalty = 2, .presence_penalty = 0.5f, .frequency_penalty = 0.25f}, {.counts = &counts},
            std::ssize(logits));
  apply_rules(logits, rules);
  EXPECT_EQ(logits, (std::vector<float>{2, 1, 4, -8.75f}));
  logits = {4, 4, 3.5f, -4};
  EXPECT_EQ(Sampler().sample(logits, {.repetition_penalty = 1.5f}, {.counts = &counts}), 2);
}

TEST(Sampler, bias_and_bans_come_before_the_choice) {
  const std::vector<float> logits{1, 5, 3, 4};
  EXPECT_EQ(sample(logits, {.logit_bias = {{0, 4.5f}}}, 0), 0);
  EXPECT_EQ(sample(logits, {.banned_ids = {1}}, 0), 3);
  EXPECT_EQ(sample(logits, {.allowed_ids = {0, 2}}, 0), 2);
  EXPECT_EQ(sample(logits, {.min_tokens = 2, .stop_ids = {1}}, 1), 3) << "the text may not end yet";
  EXPECT_EQ(sample(logits, {.min_tokens = 2, .stop_ids = {1}}, 2), 1);
  const std::vector<std::int64_t> eos{1, 3};
  auto changed = logits;
  EXPECT_EQ(Sampler().sample(changed, {.min_tokens = 1}, {.eos = eos}), 2);
  EXPECT_THROW(sample(logits, {.allowed_ids = {1}, .banned_ids = {1}}, 0), Error) << "no token is left";
}

TEST(Sampler, a_constraint_allows_tokens) {
  struct Odd final : TokenConstraint {
    void mask(std::span<std::uint32_t> allowed) override { std::fill(allowed.begin(), allowed.end(), 0xaaaaaaaau); }
    void accept(std::int32_t) override {}
  } odd;
  std::vector<float> logits(70);
  logits[68] = 3, logits[67] = 2, logits[35] = 1;
  EXPECT_EQ(Sampler().sample(logits, {}, {.constraint = &odd}), 67);
}

TEST(Sampler, logprobs_are_those_of_the_softmax) {
  const std::vector<float> logits{std::log(1.0f), std::log(4.0f), std::log(3.0f), std::log(2.0f)};
  const auto t = Sampler().logprobs(logits, 3, 2);
  EXPECT_EQ(t.id, 3);
  EXPECT_FLOAT_EQ(t.logprob, std::log(0.2f));
  ASSERT_EQ(t.top.size(), 2u);
  EXPECT_EQ(t.top[0].id, 1);
  EXPECT_EQ(t.top[1].id, 2);
  EXPECT_FLOAT_EQ(t.top[1].logprob, std::log(0.3f));
  EXPECT_EQ(Sampler().logprobs(logits, 0, 9).top.size(), 4u);
}

}  // namespace
}  // namespace hpcdl::infer
