// Texts with speculation against the same ones without it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/quantize.h"

namespace hpcdl::infer {
namespace {

using Speculation = EngineOptions::Speculation;

/// Allows ids that differ from the last one by at most 9.
struct NearTheLast final : TokenConstraint {
  std::int32_t last = 20;
  void mask(std::span<std::uint32_t> allowed) override {
    std::ranges::fill(allowed, 0u);
    for (auto id = std::max(0, last - 9); id <= std::min(49, last + 9); ++id)
      allowed[static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
  }
  void accept(std::int32_t id) override {
    EXPECT_LE(std::abs(id - last), 9);
    last = id;
  }
};

/// Prompts with and without repetitions, of many lengths, and every kind of option.
std::vector<Request> requests() {
  const std::vector<SamplingOptions> kinds{{},
                                           {.temperature = 1, .top_k = 20, .seed = 7},
                                           {.temperature = 0.3F, .top_p = 0.9F, .seed = 8},
                                           {.repetition_penalty = 1.2F, .frequency_penalty = 0.1F},
                                           {.logprobs = 2},
                                           {.min_tokens = 20, .stop_ids = {3, 17, 40}},
                                           {.stop_ids = {11, 12, 13}},
                                           {.temperature = 2, .typical_p = 0.7F, .seed = 3, .logprobs = 0},
                                           {.logit_bias = {{5, 4.0F}}, .banned_ids = {9}}};
  const int lengths[] = {1, 20, 5, 30, 64, 71, 100, 3};
  std::vector<Request> list;
  for (std::size_t i = 0; i < 40; ++i) {
    Request r{.prompt = {}, .tokens = i % 8 == 1 || i % 8 == 3 ? 120 : static_cast<int>(1 + i * 13 % 57)};
    for (int k = 0; k < lengths[i % 8]; ++k)
      r.prompt.push_back(static_cast<std::int32_t>((i % 3 == 0 ? k % 6 * 7 : k * 7) + static_cast<int>(i)) % 50);
    r.sampling = kinds[i % kinds.size()];
    r.priority = i % 11 == 0 ? 1 : 0;
    if (i % 10 == 9) r.prompt_logprobs = 1;
    list.push_back(std::move(r));
  }
  return list;
}

struct Result {
  std::deque<Heard> heard;
  EngineState state;
};

Result texts_of(const models::LanguageModel& model, Pool& pool, const EngineOptions& o) {
  Result r;
  Engine engine(model, pool, o);
  std::size_t number = 0;
  for (auto& request : requests()) {
    if (number++ % 7 == 6) request.constraint = std::make_shared<NearTheLast>();
    submit(engine, std::move(request), r.heard.emplace_back());
    if (number % 3 == 0) engine.step();
  }
  engine.run();
  expect_all_pages(engine);
  r.state = engine.state();
  return r;
}

void expect_same(const Result& got, const Result& want, bool bits) {
  for (std::size_t i = 0; i < want.heard.size(); ++i) {
    SCOPED_TRACE("text " + std::to_string(i));
    const auto &a = got.heard[i], &b = want.heard[i];
    EXPECT_EQ(a.ids, b.ids);
    if (bits) {
      EXPECT_EQ(a.logprobs, b.logprobs);
    }
    EXPECT_EQ(a.end.reason, b.end.reason) << a.end.message << b.end.message;
    EXPECT_EQ(a.end.stats.new_tokens, std::ssize(a.ids));
    EXPECT_EQ(a.end.prompt_logprobs.size(), b.end.prompt_logprobs.size());
    EXPECT_EQ(a.ends, 1);
  }
}

/// Engines with many and with few pages, in which texts are preempted.
void expect_no_difference(const models::LanguageModel& model, Pool& pool, const Speculation& speculation) {
  for (const bool invariant : {true, false})
    for (const std::int64_t pages : {4, 40}) {
      EngineOptions o{.sequences = 5, .pages = pages, .budget = 80, .numerics = {.row_invariant = invariant}};
      const auto want = texts_of(model, pool, o);
      o.speculation = speculation;
      const auto got = texts_of(model, pool, o);
      expect_same(got, want, invariant);
      EXPECT_GT(got.state.proposed_tokens, 0);
      EXPECT_GT(got.state.accepted_tokens, 0);
      EXPECT_LE(got.state.accepted_tokens, got.state.proposed_tokens);
      if (pages == 4) {
        EXPECT_GT(got.state.preemptions, 0);
      }
    }
}

TEST(Speculation, ngrams_leave_every_token_as_it_is) {
  Pool pool(2);
  for (const auto family : models::text_families()) {
    SCOPED_TRACE(io::enum_name(family));
    expect_no_difference(with_clear_logits(family), pool, {.ngrams = true});
  }
}

TEST(Speculation, a_draft_model_leaves_every_token_as_it_is) {
  Pool pool(2);
  const auto model = with_clear_logits(io::Family::llama), other = with_clear_logits(io::Family::gpt2, {}, 5);
  expect_no_difference(model, pool, {.draft = &model});
  expect_no_difference(model, pool, {.draft = &other});
}

// Where products of one row round differently from those of several, in passes that do not.
TEST(Speculation, leaves_tokens_of_16_and_4_bits_as_they_are) {
  Pool pool(2);
  const io::TempFolder temp;
  with_clear_logits(io::Family::llama).save(temp / "bf16", DType::bf16);
  models::quantize_folder(pool, temp / "bf16", temp / "int4", {.options = {.group = 32, .search = false}});
  const auto draft = with_clear_logits(io::Family::gpt2, {}, 5);
  for (const auto& [folder, type] :
       {std::pair{"bf16", DType::none}, std::pair{"bf16", DType::bf16}, std::pair{"int4", DType::none}}) {
    SCOPED_TRACE(fmt::format("{} computed in {}", folder, dtype_name(type)));
    const auto model = models::LanguageModel::open(temp / folder, {}, {}, {type, &pool});
    for (const DType kv : {DType::none, DType::i8}) {
      EngineOptions o{.sequences = 5, .pages = 20, .budget = 80, .kv = kv, .numerics = {.row_invariant = true}};
      const auto want = texts_of(model, pool, o);
      for (const auto& speculation : {Speculation{.ngrams = true}, Speculation{.draft = &draft}}) {
        o.speculation = speculation;
        const auto got = texts_of(model, pool, o);
        expect_same(got, want, true);
        EXPECT_GT(got.state.accepted_tokens, 0);
      }
    }
  }
}

std::int64_t passes(Engine& engine) {
  std::int64_t n = 0;
  while (engine.step()) ++n;
  return n;
}

TEST(Speculation, a_draft_that_is_right_saves_passes) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  for (const float temperature : {0.0F, 1.0F}) {
    Engine plain(model, pool), drafted(model, pool, {.speculation = {.draft = &model}});
    const Request r{.prompt = ids_from(1, 20), .tokens = 81, .sampling = {.temperature = temperature, .seed = 4}};
    Heard a, b;
    submit(plain, r, a), submit(drafted, r, b);
    EXPECT_EQ(passes(plain), 81);
    EXPECT_LE(passes(drafted), 20) << "up to 9 tokens a pass";
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(b.end.stats.accepted_tokens, b.end.stats.proposed_tokens);
  }
}

TEST(Speculation, ngrams_save_passes_where_a_text_repeats_itself) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  Engine engine(model, pool, {.speculation = {.ngrams = true}});
  Heard heard;
  submit(engine, {.prompt = {1}, .tokens = 100, .sampling = {.allowed_ids = {7}}},  // one token, again and again
         heard);
  EXPECT_LE(passes(engine), 20);
  EXPECT_EQ(heard.ids, std::vector<std::int32_t>(100, 7));
}

// Tokens that did not come true may have needed a further page; the text does not keep it.
TEST(Speculation, pages_of_wrong_proposals_are_free_again) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama), other = with_clear_logits(io::Family::llama, {}, 5);
  Engine engine(model, pool, {.sequences = 2, .speculation = {.draft = &other}});
  Heard heard;
  submit(engine, {.prompt = ids_from(1, 50), .tokens = 90}, heard);
  while (engine.step()) {
    const auto s = engine.state();
    if (s.running > 0) {
      EXPECT_EQ(s.pages - s.free_pages - s.cached_pages, (50 + std::ssize(heard.ids) - 1 + 63) / 64);
    }
  }
  EXPECT_LT(heard.end.stats.accepted_tokens, heard.end.stats.proposed_tokens);
  expect_all_pages(engine);
}

TEST(Speculation, a_text_that_ends_drops_what_was_proposed_after_it) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::gpt2);
  Engine engine(model, pool, {.speculation = {.draft = &model}});
  for (const int tokens : {1, 2, 5, 9}) {
    Heard heard;
    submit(engine, {.prompt = {3, 4}, .tokens = tokens}, heard);
    engine.run();
    EXPECT_EQ(std::ssize(heard.ids), tokens);
    std::vector<std::int32_t> ids;
    const auto stats = engine.generate(std::vector<std::int32_t>{3, 4}, 30, {}, [&](std::int32_t id) {
      ids.push_back(id);
      return std::ssize(ids) < tokens;
    });
    EXPECT_EQ(ids, heard.ids);
    EXPECT_EQ(stats.new_tokens, tokens);
    expect_all_pages(engine);
  }
}

TEST(Speculation, refuses_what_does_not_fit) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  auto config = models::tiny(io::Family::llama);
  config.vocab = 49;
  const auto smaller = models::LanguageModel::create(config, 3, false);
  EXPECT_THROW(Engine(model, pool, {.speculation = {.draft = &smaller}}), Error);
  EXPECT_THROW(Engine(model, pool, {.speculation = {.ngrams = true, .draft = &model}}), Error);
  EXPECT_NO_THROW(Engine(model, pool, {.vocab = 49, .speculation = {.draft = &smaller}}));
}

// A draft model whose context, or whose vocabulary, a text exceeds proposes nothing for it.
TEST(Speculation, goes_on_without_a_draft_that_cannot_follow) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  auto config = models::tiny(io::Family::gpt2);
  config.vocab = 49, config.context = 30;
  models::resolve(config);
  const auto smaller = models::LanguageModel::create(config, 3, false);
  Engine plain(model, pool, {.vocab = 49}), drafted(model, pool, {.vocab = 49, .speculation = {.draft = &smaller}});
  for (const auto& prompt : {ids_from(1, 10), std::vector<std::int32_t>{1, 49, 2}}) {
    Heard a, b;
    const Request r{.prompt = prompt, .tokens = 60};
    submit(plain, r, a), submit(drafted, r, b);
    plain.run(), drafted.run();
    EXPECT_EQ(a.ids, b.ids);
  }
}

TEST(Speculation, on_a_gpu_leaves_every_token_as_it_is) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  auto model = with_clear_logits(io::Family::llama);
  model.to_device(Stream(Device::cuda(0), pool));
  EngineOptions o{.sequences = 5, .pages = 40, .budget = 80};
  const auto want = texts_of(model, pool, o);
  for (const auto& speculation : {Speculation{.ngrams = true}, Speculation{.draft = &model}}) {
    o.speculation = speculation;
    const auto got = texts_of(model, pool, o);
    expect_same(got, want, false);
    EXPECT_GT(got.state.accepted_tokens, 0);
  }
}

}  // namespace
}  // namespace hpcdl::infer
