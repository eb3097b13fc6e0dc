// Log-probabilities where a GPU gives them, against those of the host from the same logits.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/device.h"
#include "hpcdl/infer/engine_for_tests.h"

namespace hpcdl::infer {
namespace {

/// All that texts are told, in one list, with and without rules that change logits, drawn and greedy, beside each
/// other.
std::vector<Token> told(const models::LanguageModel& model, Pool& pool, int most, bool ngrams) {
  EngineOptions o{.sequences = 8, .budget = 96, .vocab = 47};
  o.speculation.ngrams = ngrams;
  Engine engine(model, pool, o);
  std::vector<std::vector<Token>> tokens(8);
  std::vector<End> ends(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Request r{.prompt = ids_from(static_cast<int>(i), 40 + 9 * static_cast<int>(i)), .tokens = 25};
    r.sampling = {.temperature = i % 2 ? 0.8F : 0.0F, .seed = i, .logprobs = i % 4 == 3 && most <= 5 ? -1 : most};
    if (i % 3 == 1) r.sampling.repetition_penalty = 1.2F, r.sampling.banned_ids = {1, 9, 17};
    if (i % 3 == 2) r.prompt_logprobs = most;
    r.on_token = [&tokens, i](const Token& t) { return tokens[i].push_back(t), true; };
    r.on_end = [&ends, i](const End& e) { ends[i] = e; };
    engine.submit(std::move(r));
  }
  engine.run();
  expect_all_pages(engine);
  std::vector<Token> all;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(ends[i].reason, End::Reason::length) << ends[i].message;
    EXPECT_EQ(ends[i].prompt_logprobs.size(), i % 3 == 2 ? static_cast<std::size_t>(39 + 9 * i) : 0u);
    all.insert(all.end(), ends[i].prompt_logprobs.begin(), ends[i].prompt_logprobs.end());
    all.insert(all.end(), tokens[i].begin(), tokens[i].end());
  }
  return all;
}

TEST(logprobs, of_a_gpu_are_those_of_the_host) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  auto model = with_clear_logits(io::Family::llama);
  model.to_device(Stream(Device::cuda(0), pool));
  const auto want = told(model, pool, static_cast<int>(Logprobs::kMost) + 1, false);
  for (const bool ngrams : {false, true})
    for (const int most : {0, 5, static_cast<int>(Logprobs::kMost)}) {
      const auto got = told(model, pool, most, ngrams);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].id, want[i].id) << i;
        if (got[i].logprob != 0) {
          EXPECT_NEAR(got[i].logprob, want[i].logprob, 1e-3) << i;
        }
        for (std::size_t t = 0; t < got[i].top.size(); ++t)
          EXPECT_NEAR(got[i].top[t].logprob, want[i].top[t].logprob, 1e-3) << i << ", place " << t;
      }
    }
}

TEST(logprobs, tell_of_logits_that_are_not_finite) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  auto model = with_clear_logits(io::Family::llama);
  for (auto& p : model.parameters())
    if (p.name.find("embed_tokens") != std::string::npos)
      for (std::int64_t i = 0; i < p.memory[1]; ++i) p.memory.ptr<float>()[49 * p.memory[1] + i] = NAN;
  model.to_device(Stream(Device::cuda(0), pool));
  Engine engine(model, pool, {.sequences = 2});
  Heard drawn, scored;
  submit(engine, {.prompt = {1, 49, 3}, .tokens = 9, .sampling = {.logprobs = 3}}, drawn);
  submit(engine, {.prompt = {1, 49, 3}, .tokens = 0, .prompt_logprobs = 0}, scored);
  engine.run();
  for (const auto* heard : {&drawn, &scored}) {
    EXPECT_EQ(heard->end.reason, End::Reason::failed);
    EXPECT_NE(heard->end.message.find("no finite number"), std::string::npos) << heard->end.message;
  }
}

}  // namespace
}  // namespace hpcdl::infer
