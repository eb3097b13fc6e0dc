#include "hpcdl/infer/window_pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {
namespace {

TEST(window_pages, a_token_sees_its_window) {
  EXPECT_EQ(first_page_seen(0, 1), 0);
  EXPECT_EQ(first_page_seen(63, 1), 0);
  EXPECT_EQ(first_page_seen(64, 1), 1) << "token 64 sees itself only";
  EXPECT_EQ(first_page_seen(64, 2), 0);
  EXPECT_EQ(first_page_seen(163, 100), 1) << "token 163 sees tokens 64 to 163";
  EXPECT_EQ(first_page_seen(162, 100), 0);
}

TEST(window_pages, stay_with_their_owner_until_another_needs_them) {
  WindowPages w(2, 5);
  const auto a = w.hold(3), b = w.hold(4);
  EXPECT_NE(a, b);
  EXPECT_THROW(w.hold(0), Error) << "texts hold both";
  EXPECT_EQ(w.hold(3), a) << "a second text";
  w.release(3, true);
  w.release(4, true);
  EXPECT_EQ(w.free_pages(), 1);
  EXPECT_EQ(w.of(4), b) << "it can be found again";
  EXPECT_EQ(w.hold(4), b);
  w.release(4, true);
  EXPECT_EQ(w.hold(0), b);
  EXPECT_EQ(w.of(4), -1);
  w.release(0, false);
  EXPECT_EQ(w.of(0), -1) << "nobody finds it";
  w.release(3, true);
  EXPECT_EQ(w.free_pages(), 2);
}

models::LanguageModel windowed(io::Family family, std::int64_t window) {
  auto config = models::tiny(family);
  config.layers = 4, config.context = 1024, config.window = window, config.sliding.clear();
  models::resolve(config);
  auto model = models::LanguageModel::create(config, 3, false);
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
  return model;
}

/// Two engines that differ in one thing: so many texts at a time would need more pages with windows than the others have,
/// so that `keeps` has one pool.
struct TwoEngines {
  models::LanguageModel model;
  Pool pool{2};
  Engine frees, keeps;
  static EngineOptions options(std::int64_t texts) {
    return {.context = 900, .sequences = texts, .pages = 100, .budget = 128, .numerics = {.row_invariant = true}};
  }
  TwoEngines(io::Family family, std::int64_t window)
      : model(windowed(family, window)), frees(model, pool, options(2)), keeps(model, pool, options(40)) {}
};

Request request(std::vector<std::int32_t> prompt, int tokens) {
  return {.prompt = std::move(prompt), .tokens = tokens, .sampling = {.temperature = 1, .seed = 4, .logprobs = 0}};
}

class Windows : public testing::TestWithParam<io::Family> {};

// Of all layers (mistral), and of some beside layers that see everything.
TEST_P(Windows, free_pages_and_change_no_bit) {
  for (const std::int64_t window : {1, 7, 64, 65, 130}) {
    SCOPED_TRACE(window);
    TwoEngines e(GetParam(), window);
    ASSERT_GT(e.frees.state().window_pages, 0);
    ASSERT_LT(e.frees.state().window_pages, 20);
    ASSERT_EQ(e.keeps.state().window_pages, 0);
    std::vector<Heard> got(3), want(3);
    for (auto* engine : {&e.frees, &e.keeps}) {
      auto& heard = engine == &e.frees ? got : want;
      for (int i = 0; i < 3; ++i)
        submit(*engine, request(ids_from(3 * i, 330 + 50 * i), 150), heard[static_cast<std::size_t>(i)]);
      engine->run();
      expect_all_pages(*engine);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].ids, want[i].ids);
      EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    }
    EXPECT_GT(e.frees.state().left_pages, 10);
    EXPECT_EQ(e.keeps.state().left_pages, 0);
  }
}

// A text that begins like others takes their keys only as far as all layers have them.
TEST_P(Windows, find_the_beginnings_of_texts) {
  TwoEngines e(GetParam(), 100);
  const auto first = ids_from(5, 500);
  const auto run = [&](Engine& engine, std::vector<std::int32_t> prompt) {
    Heard heard;
    submit(engine, request(std::move(prompt), 20), heard);
    engine.run();
    expect_all_pages(engine);
    return heard;
  };
  run(e.frees, first), run(e.keeps, first);
  for (const std::size_t common : {500u, 499u, 470u, 320u, 200u, 64u, 10u}) {
    SCOPED_TRACE(common);
    auto prompt = first;
    prompt.resize(common);
    for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<std::int32_t>(i + common) % 50);
    const auto got = run(e.frees, prompt), want = run(e.keeps, prompt);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.logprobs, want.logprobs);
    EXPECT_LE(got.end.stats.cached_tokens, want.end.stats.cached_tokens);
    if (common >= 499) {
      EXPECT_EQ(got.end.stats.cached_tokens, want.end.stats.cached_tokens) << "its end is still there";
    }
  }
  // Until their memory was needed by others.
  for (int i = 0; i < 6; ++i) run(e.frees, ids_from(20 + i, 400));
  const auto got = run(e.frees, first), want = run(e.keeps, first);
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_EQ(got.logprobs, want.logprobs);
}

// Passes that are queued ahead find their pages on the GPU.
TEST_P(Windows, on_a_gpu_change_no_token) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  auto model = windowed(GetParam(), 100);
  model.to_device(Stream(Device::cuda(0), pool));
  const auto run = [&](std::int64_t texts, int logprobs) {
    Engine engine(model, pool, {.context = 900, .sequences = texts, .pages = 100, .budget = 128});
    EXPECT_EQ(engine.state().window_pages > 0, texts == 2);
    Heard heard;
    submit(engine, {.prompt = ids_from(5, 330), .tokens = 300, .sampling = {.logprobs = logprobs}}, heard);
    engine.run();
    expect_all_pages(engine);
    return heard;
  };
  const auto want = run(40, 0), frees = run(2, 0), ahead = run(2, -1);
  EXPECT_EQ(frees.ids, want.ids);
  EXPECT_EQ(frees.logprobs, want.logprobs);
  EXPECT_EQ(ahead.ids, want.ids);
}

INSTANTIATE_TEST_SUITE_P(all, Windows,
                         testing::Values(io::Family::mistral, io::Family::gemma2, io::Family::gemma3_text),
                         [](const auto& c) { return std::string(io::enum_name(c.param)); });

TEST(window_pages, interrupted_texts_go_on_with_the_same_tokens) {
  const auto model = windowed(io::Family::gemma2, 70);
  Pool pool(2);
  Engine tight(model, pool,
               {.context = 700,
                .sequences = 3,
                .pages = 18,
                .budget = 128,
                .speculation = {.ngrams = true},
                .numerics = {.row_invariant = true}}),
      ample(model, pool, {.context = 700, .sequences = 1, .budget = 128, .numerics = {.row_invariant = true}});
  ASSERT_GT(tight.state().window_pages, 0);
  std::vector<Heard> got(4), want(4);
  for (auto* engine : {&tight, &ample}) {
    auto& heard = engine == &tight ? got : want;
    for (int i = 0; i < 4; ++i)
      submit(*engine, {.prompt = ids_from(i, 300), .tokens = 200}, heard[static_cast<std::size_t>(i)]);
    engine->run();
    expect_all_pages(*engine);
  }
  EXPECT_GT(tight.state().preemptions, 0);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, want[i].ids) << i;
}

}  // namespace
}  // namespace hpcdl::infer
