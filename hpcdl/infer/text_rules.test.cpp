#include "hpcdl/infer/text_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"

namespace hpcdl::infer {
namespace {

/// Allows ids that differ from the last one by at most 9.
struct NearTheLast final : TokenConstraint {
  std::int32_t last = 20;
  void mask(std::span<std::uint32_t> allowed) override {
    std::ranges::fill(allowed, 0u);
    for (auto id = std::max(0, last - 9); id <= std::min(49, last + 9); ++id)
      allowed[static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
  }
  void accept(std::int32_t id) override { last = id; }
};

std::vector<std::int32_t> allowed(const RowRules& r, std::int32_t vocab) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < vocab; ++id)
    if (r.mask.empty() || (r.mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1u)) ids.push_back(id);
  return ids;
}

TEST(text_rules, a_mask_holds_what_all_of_them_allow) {
  RowRules r;
  set_rules(r, {}, {}, 50);
  EXPECT_FALSE(r.any());
  NearTheLast near;
  const std::vector<std::int64_t> eos{14};
  const SamplingOptions o{
      .allowed_ids = {10, 11, 12, 13, 14, 15, 40, 77}, .banned_ids = {12, 99}, .min_tokens = 2, .stop_ids = {13}};
  const auto at = [&](std::uint64_t index, bool constrained) {
    set_rules(r, o, {.index = index, .eos = eos, .constraint = constrained ? &near : nullptr}, 50);
    return allowed(r, 50);
  };
  EXPECT_EQ(at(0, false), (std::vector<std::int32_t>{10, 11, 15, 40}));
  EXPECT_EQ(at(2, false), (std::vector<std::int32_t>{10, 11, 13, 14, 15, 40}));
  EXPECT_EQ(at(2, true), (std::vector<std::int32_t>{11, 13, 14, 15}));
}

TEST(text_rules, counts_tell_the_prompt_from_new_tokens) {
  TokenCounts counts;
  const std::vector<std::int32_t> prompt{3, 5, 3};
  counts.add_prompt(prompt);
  counts.add_output(5), counts.add_output(7), counts.add_output(5);
  RowRules r;
  set_rules(r, {.frequency_penalty = 1}, {.counts = &counts}, 50);
  ASSERT_EQ(r.counts.size(), 3u);
  for (const auto& c : r.counts) EXPECT_EQ(c.times, c.id == 3 ? 0 : c.id == 5 ? 2 : 1) << c.id;
  set_rules(r, {}, {.counts = &counts}, 50);
  EXPECT_TRUE(r.counts.empty()) << "without penalties they are of no use";
}

std::vector<SamplingOptions> all_rules() {
  std::vector<SamplingOptions> list{
      {.repetition_penalty = 1.3F},
      {.presence_penalty = 0.7F, .frequency_penalty = 0.4F},
      {.logit_bias = {{5, 4.0F}, {30, -100.0F}, {49, 2.5F}}},
      {.banned_ids = {1, 9, 17, 25, 33, 41}},
      {.allowed_ids = {2, 3, 5, 8, 13, 21, 34}},
      {.min_tokens = 30, .stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {.repetition_penalty = 1.1F, .frequency_penalty = 0.2F, .logit_bias = {{7, 1.5F}}, .banned_ids = {3}},
      {},
  };
  const auto greedy = list.size();
  for (std::size_t i = 0; i < greedy; ++i) {
    auto drawn = list[i];
    drawn.temperature = 0.8F, drawn.top_p = i % 2 ? 0.9F : 1.0F, drawn.top_k = i % 3 ? 0 : 20, drawn.seed = i;
    list.push_back(drawn);
  }
  return list;
}

/// Texts by the rules, half of them with a constraint. `on_host`: more log-probabilities than a GPU gives.
std::vector<Heard> texts_of(const models::LanguageModel& model, Pool& pool, const EngineOptions& o, bool on_host) {
  Engine engine(model, pool, o);
  const auto rules = all_rules();
  std::vector<Heard> heard(2 * rules.size());
  for (std::size_t i = 0; i < heard.size(); ++i) {
    Request r{
        .prompt = ids_from(static_cast<int>(i), 10 + static_cast<int>(i)), .tokens = 70, .sampling = rules[i / 2]};
    if (i % 2 && r.sampling.allowed_ids.empty()) r.constraint = std::make_shared<NearTheLast>();
    if (on_host) r.sampling.logprobs = Logprobs::kMost + 1;
    submit(engine, std::move(r), heard[i]);
  }
  engine.run();
  expect_all_pages(engine);
  return heard;
}

// A GPU that keeps the logits chooses the tokens which the host chooses from the same logits.
TEST(text_rules, a_gpu_chooses_the_tokens_of_the_host) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  auto model = with_clear_logits(io::Family::llama);
  model.to_device(Stream(Device::cuda(0), pool));
  EngineOptions o{.sequences = 8, .budget = 256, .vocab = 47};
  const auto want = texts_of(model, pool, o, true);
  for (const bool ngrams : {false, true}) {
    o.speculation.ngrams = ngrams;
    const auto got = texts_of(model, pool, o, false);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].ids, want[i].ids) << "text " << i << (ngrams ? " with n-grams" : "");
      EXPECT_EQ(got[i].end.reason, want[i].end.reason) << got[i].end.message;
    }
  }
}

TEST(text_rules, say_when_they_leave_no_token) {
  Pool pool(1);
  auto model = with_clear_logits(io::Family::llama);
  const auto check = [&] {
    Engine engine(model, pool, {.sequences = 2});
    Heard none, fine;
    submit(engine, {.prompt = {1, 2}, .tokens = 5, .sampling = {.allowed_ids = {7}, .banned_ids = {7}}}, none);
    submit(engine, {.prompt = {1, 2}, .tokens = 5, .sampling = {.repetition_penalty = 1.5F}}, fine);
    engine.run();
    EXPECT_EQ(none.end.reason, End::Reason::failed);
    EXPECT_NE(none.end.message.find("leave no token"), std::string::npos) << none.end.message;
    EXPECT_EQ(fine.ids.size(), 5u) << "others go on";
  };
  check();
  if (cuda_devices() == 0) return;
  model.to_device(Stream(Device::cuda(0), pool));
  check();
}

}  // namespace
}  // namespace hpcdl::infer
