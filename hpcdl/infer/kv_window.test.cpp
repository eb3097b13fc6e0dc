#include "hpcdl/infer/kv_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/infer/llama_for_tests.h"

namespace hpcdl::infer {
namespace {

constexpr std::int64_t kContext = 448;
constexpr KvWindow kWindow{.tokens = 100, .sink = 4};  // 2 pages and 1

models::LanguageModel model_with_room(io::Family family = io::Family::llama) {
  auto config = models::tiny(family);
  config.context = kContext;
  models::resolve(config);
  auto model = models::LanguageModel::create(config, 3, false);
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
  return model;
}

TEST(KvWindow, tokens_see_the_sinks_and_the_last_ones) {
  EXPECT_EQ(kWindow.pages(), 4);
  EXPECT_EQ(kWindow.first_page(0), 1);
  EXPECT_EQ(kWindow.first_page(4 * 64 - 1), 1);
  EXPECT_EQ(kWindow.first_page(4 * 64), 2) << "pages 0, 2, 3 and 4: 128 tokens before its own";
  EXPECT_EQ(kWindow.tokens_alike(0), 256) << "nothing has to leave yet";
  EXPECT_EQ(kWindow.tokens_alike(200), 56);
  EXPECT_EQ(kWindow.tokens_alike(256), 64);
  EXPECT_EQ(kWindow.tokens_alike(319), 1);
  EXPECT_EQ((KvWindow{.tokens = 64}.pages()), 2) << "no sinks";
}

TEST(KvWindow, a_full_context_goes_on_with_sinks_and_window) {
  std::vector<std::int32_t> text(449);
  std::iota(text.begin(), text.end(), 0);
  auto same = text;
  same.pop_back();
  kWindow.shorten(same, kContext);
  EXPECT_EQ(same.size(), 448u);
  kWindow.shorten(text, kContext);
  ASSERT_EQ(text.size(), 64u + 128 + 1);
  EXPECT_EQ(text[63], 63);
  EXPECT_EQ(text[64], 448 - 128);
  EXPECT_EQ(text.back(), 448);
  // At once as one by one.
  std::vector<std::int32_t> all(3000), grown;
  std::iota(all.begin(), all.end(), 0);
  for (const auto id : all) grown.push_back(id), kWindow.shorten(grown, kContext);
  kWindow.shorten(all, kContext);
  EXPECT_EQ(all, grown);
}

TEST(KvWindow, refuses_what_does_not_fit) {
  EXPECT_NO_THROW(kWindow.check("generate", 193));
  EXPECT_THROW(kWindow.check("generate", 192), UsageError);
  EXPECT_THROW((KvWindow{.tokens = -1}.check("generate", 100)), UsageError);
  EXPECT_THROW((KvWindow{.sink = 4}.check("generate", 100)), UsageError);
  const auto model = model_with_room();
  Pool pool(1);
  EXPECT_THROW(Engine(model, pool, {.kv_window = kWindow, .speculation = {.draft = &model}}), Error);
  Engine engine(model, pool, {.kv_window = kWindow});
  EXPECT_THROW(engine.submit({.prompt = ids_from(1, 449), .tokens = 1, .prompt_logprobs = 0}), Error);
}

/// Greedy texts, by a reference that has all keys and masks them.
void expect_reference(models::LanguageModel& model, const std::vector<std::int32_t>& prompt, const Heard& heard) {
  auto text = prompt;
  kWindow.shorten(text, kContext);
  NaiveLlama llama(model);
  NaiveLlama::Row after;
  std::int64_t place = 0;
  const auto read = [&] {
    for (; place < std::ssize(text); ++place)
      after = llama.next(text[static_cast<std::size_t>(place)], [&](std::int64_t other) {
        return other / 64 < kWindow.sink_pages() || other / 64 >= kWindow.first_page(place);
      });
  };
  for (std::size_t i = 0; i < heard.ids.size(); ++i) {
    read();
    const auto id = heard.ids[i];
    EXPECT_NEAR(heard.logprobs[i], after[static_cast<std::size_t>(id)], 2e-3) << "token " << i;
    EXPECT_GE(after[static_cast<std::size_t>(id)], *std::ranges::max_element(after) - 2e-3) << "token " << i;
    if (testing::Test::HasFailure()) break;
    text.push_back(id);
    if (std::ssize(text) > kContext) kWindow.shorten(text, kContext), llama = NaiveLlama(model), place = 0;
  }
}

TEST(KvWindow, equals_a_reference_that_masks) {
  auto model = model_with_room();
  Pool pool(2);
  for (const int length : {5, 300, 1000}) {  // the last one has filled the context twice
    SCOPED_TRACE(length);
    Engine engine(model, pool, {.kv_window = kWindow});
    EXPECT_EQ(engine.state().pages, kWindow.pages());
    Heard heard;
    submit(engine, {.prompt = ids_from(3, length), .tokens = 1300, .sampling = {.logprobs = 0}}, heard);
    engine.run();
    ASSERT_EQ(heard.ids.size(), 1300u) << heard.end.message;
    expect_reference(model, ids_from(3, length), heard);
    expect_all_pages(engine);
  }
}

// Ten windows long, in the pages of one.
TEST(KvWindow, bits_do_not_depend_on_how_texts_are_cut) {
  for (const auto family : {io::Family::llama, io::Family::gpt2, io::Family::gemma2}) {
    const auto model = model_with_room(family);
    Pool pool(2);
    const auto texts_of = [&](EngineOptions o, std::int64_t& preemptions) {
      o.kv_window = kWindow, o.numerics.row_invariant = true;
      Engine engine(model, pool, o);
      std::vector<Heard> heard(4);
      for (int i = 0; i < 4; ++i)
        submit(engine,
               {.prompt = ids_from(i % 3, 40 + 230 * i),
                .tokens = 1050,
                .sampling = {.temperature = i % 2 ? 0.0F : 0.7F, .seed = 5, .logprobs = 0}},
               heard[static_cast<std::size_t>(i)]);
      while (engine.step()) {
        const auto s = engine.state();
        EXPECT_LE(s.pages - s.free_pages - s.cached_pages, s.running * kWindow.pages());
      }
      expect_all_pages(engine);
      preemptions = engine.state().preemptions;
      return heard;
    };
    std::int64_t none = 0, some = 0;
    const auto want = texts_of({.sequences = 1}, none);
    const EngineOptions others[] = {{.sequences = 4},
                                    {.sequences = 3, .budget = 67},
                                    {.sequences = 4, .pages = 7},
                                    {.sequences = 2, .reuse_prefixes = false},
                                    {.sequences = 2, .speculation = {.ngrams = true}}};
    for (const auto& o : others) {
      const auto got = texts_of(o, some);
      if (o.pages > 0) {
        EXPECT_GT(some, 0);
      }
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].ids.size(), 1050u) << got[i].end.message;
        EXPECT_EQ(got[i].ids, want[i].ids) << i;
        EXPECT_EQ(got[i].logprobs, want[i].logprobs) << i;
      }
    }
  }
}

// Passes that are queued ahead count keys and positions on the GPU.
TEST(KvWindow, on_a_gpu_equals_the_reference) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  auto here = model_with_room(), there = model_with_room();
  there.to_device(Stream(Device::cuda(0), pool));
  Heard one_by_one, ahead;
  for (auto* heard : {&one_by_one, &ahead}) {
    Engine engine(there, pool, {.kv_window = kWindow});
    submit(engine, {.prompt = ids_from(3, 300), .tokens = 700, .sampling = {.logprobs = heard == &ahead ? -1 : 0}},
           *heard);
    engine.run();
    expect_all_pages(engine);
  }
  ASSERT_EQ(ahead.ids.size(), 700u) << ahead.end.message;
  EXPECT_EQ(ahead.ids, one_by_one.ids);
  expect_reference(here, ids_from(3, 300), one_by_one);
}

// Texts that fit are those of an engine without a window.
TEST(KvWindow, changes_nothing_until_a_page_leaves) {
  const auto model = model_with_room();
  Pool pool(1);
  Engine with(model, pool, {.kv_window = kWindow}), without(model, pool, {});
  Heard a, b;
  const Request r{.prompt = ids_from(1, 100), .tokens = 156, .sampling = {.logprobs = 0}};
  submit(with, r, a), submit(without, r, b);
  with.run(), without.run();
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

}  // namespace
}  // namespace hpcdl::infer
