// Texts with different adapters in one batch, against each of them with its adapter alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/adapters_for_tests.h"

namespace hpcdl::infer {
namespace {

struct Text {
  std::int32_t adapter = -1;
  std::vector<std::int32_t> prompt;
  int tokens = 12;
};

Request request(const Text& text, std::int32_t adapter) {
  return {
      .prompt = text.prompt, .tokens = text.tokens, .sampling = {.temperature = 0, .logprobs = 0}, .adapter = adapter};
}

constexpr Numerics kInvariant{.row_invariant = true};

/// Prompts that one pass reads, that several do, and that begin alike.
std::vector<Text> some_texts() {
  return {{0, ids_from(3, 9)},   {-1, ids_from(3, 9)},   {1, ids_from(5, 100)}, {2, ids_from(5, 100)},
          {-1, ids_from(5, 80)}, {0, ids_from(11, 100)}, {2, ids_from(9, 1)},   {1, ids_from(3, 9)}};
}

/// All of them together.
std::deque<Heard> together(Engine& engine, const std::vector<Text>& texts) {
  std::deque<Heard> heard(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) submit(engine, request(texts[i], texts[i].adapter), heard[i]);
  engine.run();
  return heard;
}

void expect_equal(const Heard& a, const Heard& b) {
  EXPECT_EQ(a.end.message, "");
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

struct Families : ::testing::TestWithParam<io::Family> {
  Families() : adapted(GetParam()), model(adapted.open()) {}

  /// What a text gives in an engine of its own, whose model has its adapter for all texts.
  Heard alone(const Text& text) {
    const auto with = adapted.open_with(text.adapter);
    Engine engine(with, pool, {.numerics = kInvariant});
    Heard heard;
    submit(engine, request(text, -1), heard);
    engine.run();
    return heard;
  }
  void expect_as_alone(const std::vector<Text>& texts, const std::deque<Heard>& heard) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(fmt::format("text {} with adapter {}", i, texts[i].adapter));
      expect_equal(heard[i], alone(texts[i]));
    }
  }
  void expect_no_batch_mates(const models::LanguageModel& of) {
    const auto texts = some_texts();
    const EngineOptions options{.sequences = 8, .numerics = kInvariant};
    Engine engine(of, pool, options);
    const auto heard = together(engine, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(i);
      Engine own(of, pool, options);
      expect_equal(together(own, {texts[i]})[0], heard[i]);
    }
  }
  Pool pool{2};
  AdaptedModel adapted;
  models::LanguageModel model;
};

TEST_P(Families, every_text_of_a_batch_is_what_it_is_with_its_adapter_alone) {
  const auto texts = some_texts();
  Engine engine(model, pool, {.sequences = 6, .budget = 6 + kLeastChunk, .numerics = kInvariant});
  const auto heard = together(engine, texts);
  expect_as_alone(texts, heard);
  EXPECT_NE(heard[0].logprobs, heard[1].logprobs);
  EXPECT_NE(heard[0].logprobs, heard[7].logprobs);
  EXPECT_NE(heard[2].logprobs, heard[3].logprobs);
  expect_all_pages(engine);
}

INSTANTIATE_TEST_SUITE_P(some, Families,
                         ::testing::Values(io::Family::llama, io::Family::gpt2, io::Family::phi3, io::Family::gemma2),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

struct Llama : Families {};
INSTANTIATE_TEST_SUITE_P(one, Llama, ::testing::Values(io::Family::llama), [](const auto&) { return "llama"; });

TEST_P(Llama, keys_and_values_of_another_adapter_are_not_found) {
  Engine engine(model, pool, {.numerics = kInvariant});
  for (const std::int32_t adapter : {0, -1, 1}) {
    const Text text{adapter, ids_from(5, 100)};
    for (const bool again : {false, true}) {
      SCOPED_TRACE(fmt::format("adapter {}, {}", adapter, again ? "again" : "first"));
      const auto heard = together(engine, {text});
      EXPECT_EQ(heard[0].end.stats.cached_tokens, again ? 99 : 0);
      expect_as_alone({text}, heard);
    }
  }
}

/// Their next pages would be equal, if the adapters were.
TEST_P(Llama, prompts_that_are_alike_do_not_wait_for_each_other) {
  Engine engine(model, pool, {.sequences = 2, .budget = 300, .numerics = kInvariant});
  const std::vector<Text> texts{{0, ids_from(5, 130)}, {1, ids_from(5, 130)}};
  std::deque<Heard> heard(2);
  for (std::size_t i = 0; i < 2; ++i) submit(engine, request(texts[i], texts[i].adapter), heard[i]);
  engine.step();
  EXPECT_EQ(engine.state().running, 2);
  engine.run();
  expect_as_alone(texts, heard);
}

TEST_P(Llama, interrupted_texts_keep_their_adapters) {
  std::vector<Text> texts;
  for (const std::int32_t adapter : {0, 1, -1, 2}) texts.push_back({adapter, ids_from(adapter + 2, 50), 60});
  Engine engine(model, pool, {.sequences = 4, .pages = 5, .numerics = kInvariant});
  const auto heard = together(engine, texts);
  EXPECT_GT(engine.state().preemptions, 0);
  expect_as_alone(texts, heard);
  expect_all_pages(engine);
}

TEST_P(Llama, speculation_changes_no_text) {
  std::vector<Text> texts;
  for (const std::int32_t adapter : {0, -1, 1}) {
    Text t{adapter, {}, 40};
    for (int i = 0; i < 60; ++i) t.prompt.push_back(3 + i % 5);
    texts.push_back(t);
  }
  Engine engine(model, pool, {.sequences = 3, .speculation = {.ngrams = true}, .numerics = kInvariant});
  const auto heard = together(engine, texts);
  EXPECT_GT(engine.state().proposed_tokens, 0);
  expect_as_alone(texts, heard);
}

TEST_P(Llama, no_text_of_16_bits_depends_on_its_batch_mates) {
  expect_no_batch_mates(adapted.open({DType::bf16, &pool}));
}

/// Where products choose their kernels by the number of rows.
TEST_P(Llama, without_invariant_numerics_only_rounding_differs) {
  const auto texts = some_texts();
  Engine engine(model, pool, {.sequences = 8});
  const auto heard = together(engine, texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(i);
    const auto want = alone(texts[i]);
    EXPECT_EQ(heard[i].ids, want.ids);
    ASSERT_EQ(heard[i].logprobs.size(), want.logprobs.size());
    for (std::size_t t = 0; t < want.logprobs.size(); ++t)
      EXPECT_NEAR(heard[i].logprobs[t], want.logprobs[t], 1e-4) << "token " << t;
  }
}

/// Programs of one layout, which a GPU captures, serve any choice.
TEST_P(Llama, a_gpu_gives_every_text_its_adapter) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  auto there = adapted.open({}, Device::cuda(0));
  there.to_device(Stream(Device::cuda(0), pool));
  Engine engine(there, pool, {.sequences = 8});
  auto texts = some_texts();
  for (int turn = 0; turn < 3; ++turn) {
    const auto heard = together(engine, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(fmt::format("turn {}, text {}, adapter {}", turn, i, texts[i].adapter));
      const auto want = alone(texts[i]);
      EXPECT_EQ(heard[i].end.message, "");
      EXPECT_EQ(heard[i].ids, want.ids);
      ASSERT_EQ(heard[i].logprobs.size(), want.logprobs.size());
      for (std::size_t t = 0; t < want.logprobs.size(); ++t)
        EXPECT_NEAR(heard[i].logprobs[t], want.logprobs[t], 1e-3) << "token " << t;
    }
    std::ranges::rotate(texts, texts.begin() + 1);
    for (auto& t : texts) t.adapter = (t.adapter + 2) % 4 - 1;
  }
}

TEST_P(Llama, no_text_of_16_bits_depends_on_its_batch_mates_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  auto half = adapted.open({DType::bf16, &pool}, Device::cuda(0));
  half.to_device(Stream(Device::cuda(0), pool));
  expect_no_batch_mates(half);
}

TEST_P(Llama, texts_without_adapters_have_programs_without_them) {
  Engine engine(model, pool);
  const auto ops = [&] {
    const auto& records = engine.last_program()->program().records;
    return std::ranges::count_if(records, [](const auto& r) { return r.op.view() == "adapter_rows"; });
  };
  together(engine, {{-1, ids_from(3, 9)}});
  EXPECT_EQ(ops(), 0);
  together(engine, {{2, ids_from(3, 9)}});  // has an adapter in one of two blocks
  EXPECT_EQ(ops(), 14);
}

TEST_P(Llama, adapters_that_the_model_lacks_are_refused) {
  Engine engine(model, pool);
  Heard heard;
  try {
    submit(engine, request({3, ids_from(3, 9)}, 3), heard);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "[generate] the text asks for adapter 3, and the model has 3: expected less, or -1 for none");
  }
}

}  // namespace
}  // namespace hpcdl::infer
