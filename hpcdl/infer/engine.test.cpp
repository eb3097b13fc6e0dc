#include "hpcdl/infer/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

models::LanguageModel opened(const io::TempFolder& temp, io::Family family, DType dtype) {
  auto model = models::LanguageModel::create(models::tiny(family), 3, false);
  for (auto& p : model.parameters())  // larger than fresh weights, so that the logits differ clearly
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
  model.save(temp.path(), dtype);
  return models::LanguageModel::open(temp.path());
}

/// Logits of every token of a batch, (B, T, vocabulary), in f32 on a CPU.
std::vector<float> logits_of_batch(const models::LanguageModel& model, Pool& pool, std::int64_t batch,
                                   const std::vector<std::int32_t>& ids, const Numerics& numerics = {}) {
  Graph g({.inference = true, .numerics = numerics});
  const Var tokens = g.input("tokens", {{batch, std::ssize(ids) / batch}, DType::i32});
  const Var y = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish());
  StepParams params;
  Stream s(pool, &params);
  copy(s, exe.tensor(tokens), View(ids.data(), exe.tensor(tokens).spec()));
  exe.run(s);
  const Tensor all = exe.tensor(y);
  return {all.ptr<float>(), all.ptr<float>() + all.size()};
}

/// Those of the last of `ids`.
std::vector<float> logits_of(const models::LanguageModel& model, Pool& pool, const std::vector<std::int32_t>& ids) {
  const auto all = logits_of_batch(model, pool, 1, ids);
  return {all.end() - static_cast<std::ptrdiff_t>(all.size() / ids.size()), all.end()};
}

class EngineOnGpu : public testing::TestWithParam<std::tuple<io::Family, DType>> {};

// Every token is, up to rounding errors, the most likely one for the same weights in f32 on a CPU.
TEST_P(EngineOnGpu, computes_in_the_type_of_the_weights) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto [family, dtype] = GetParam();
  const io::TempFolder temp;
  Pool pool(2);
  const auto on_cpu = opened(temp, family, dtype);
  auto model = models::LanguageModel::open(temp.path());
  model.to_device(Stream(Device::cuda(0), pool));
  for (const DType kv : {DType::none, DType::i8, DType::f8_e4m3}) {
    SCOPED_TRACE(dtype_name(kv));
    Engine engine(model, pool, {.context = 16, .kv = kv});
    EXPECT_EQ(engine.dtype(), dtype);
    std::vector<std::int32_t> text{1, 12, 23, 34, 45};  // programs of 4 and 1 tokens
    const std::vector<std::int32_t> prompt = text;
    engine.generate(prompt, 8, {}, [&](std::int32_t id) {
      const auto want = logits_of(on_cpu, pool, text);
      const float best = *std::max_element(want.begin(), want.end()),
                  least = *std::min_element(want.begin(), want.end());
      EXPECT_GE(want[static_cast<std::size_t>(id)], best - 0.1f * (best - least)) << "token " << text.size();
      text.push_back(id);
      return true;
    });
    EXPECT_EQ(text.size(), prompt.size() + 8);
  }
}

INSTANTIATE_TEST_SUITE_P(all, EngineOnGpu,
                         testing::Combine(testing::Values(io::Family::gpt2, io::Family::llama),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& c) {
                           return std::string(io::enum_name(std::get<0>(c.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(c.param)));
                         });

TEST(Engine, engines_of_a_model_share_its_programs) {
  Pool pool(1);
  auto model = models::LanguageModel::create(models::tiny(io::Family::llama), 3, false);
  const auto ids = [](Engine& g) {
    std::vector<std::int32_t> out;
    g.generate(std::vector<std::int32_t>{1, 2, 3}, 5, {}, [&](std::int32_t id) { return out.push_back(id), true; });
    return out;
  };
  Engine a(model, pool, {.context = 12}), b(model, pool, {.context = 12}),
      larger(model, pool, {.context = 12, .pages = 2});
  const auto of_a = a.programs(3), of_b = b.programs(3), of_larger = larger.programs(3);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_EQ(of_a[i]->planned(), of_b[i]->planned());
    EXPECT_NE(of_a[i]->planned(), of_larger[i]->planned()) << "they depend on the pool";
  }
  const auto want = ids(a);
  EXPECT_EQ(ids(b), want);
  EXPECT_EQ(ids(a), want) << "the other engine has its own pages";
  model.keep_copies(DType::bf16);  // memory moves: programs are recorded again
  EXPECT_NE(Engine(model, pool, {.context = 12}).programs(1)[0]->planned(), of_a[0]->planned());
}

/// Logits of every token of one row, which runs through passes of `cuts` tokens after each other, in pages that are not
/// in order.
std::vector<float> logits_of_passes(const models::LanguageModel& model, Pool& pool,
                                    const std::vector<std::int32_t>& ids, const std::vector<std::int64_t>& cuts,
                                    const Numerics& numerics) {
  constexpr std::int64_t kPages = 3;
  const std::vector<std::int32_t> pages{2, 0, 1};
  const KvPool memory(layers_of_pool(model, {.pool_pages = kPages}), Device());
  BatchMemory batch({.tokens = std::ssize(ids), .pages = kPages}, Device());
  Stream s(pool);
  std::vector<float> all;
  std::int64_t done = 0;
  for (const auto n : cuts) {
    const BatchLayout layout{.tokens = n, .pages = kPages, .pool_pages = kPages, .rows = n, .single = n == 1};
    const auto pass = batch_pass(model, layout, numerics);
    auto bindings = pass->bindings;
    memory.bind(bindings), batch.bind(layout, bindings);
    const Instance step(pass->planned, std::move(bindings));
    const BatchRow row{{pages}, done, n};
    batch.set(s, layout, {&row, 1});
    copy(s, step.input(0), View(ids.data() + done, step.input(0).spec()));
    step.run(s);
    done += n;
    const Tensor y = step.output(0);
    all.insert(all.end(), y.ptr<float>(), y.ptr<float>() + y.size());
  }
  return all;
}

TEST(Engine, row_invariant_logits_do_not_depend_on_how_tokens_are_cut_or_batched) {
  constexpr Numerics kInvariant{.row_invariant = true};
  constexpr std::int64_t kTokens = 137;
  Pool pool(2);
  for (const auto family : models::text_families()) {
    SCOPED_TRACE(io::enum_name(family));
    auto config = models::tiny(family);
    config.heads = 4, config.kv_heads = 0, config.width = 160, config.context = 140, config.vocab = 200;
    config.head_dim = config.ffn = 0;
    models::resolve(config);
    const auto model = models::LanguageModel::create(config, 3, false);
    std::vector<std::int32_t> ids(kTokens);
    for (std::int64_t i = 0; i < kTokens; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % 200);
    const auto want = logits_of_batch(model, pool, 1, ids, kInvariant);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{64, 64, 8, 1}, {1, 136}, {5, 3, 117, 12}, std::vector<std::int64_t>(kTokens, 1)})
      EXPECT_EQ(logits_of_passes(model, pool, ids, cuts, kInvariant), want) << cuts.size() << " passes";
    std::vector<std::int32_t> batch;
    for (const int row : {3, 0, 5})
      for (const auto id : ids) batch.push_back((id + row) % 200);
    const auto of_three = logits_of_batch(model, pool, 3, batch, kInvariant);
    const auto n = std::ssize(want);
    EXPECT_EQ(std::vector<float>(of_three.begin() + n, of_three.begin() + 2 * n), want) << "the second of three rows";
    const std::vector<std::int32_t> start(ids.begin(), ids.begin() + 20);
    EXPECT_EQ(logits_of_batch(model, pool, 1, start, kInvariant),
              std::vector<float>(want.begin(), want.begin() + 20 * config.vocab))
        << "the first 20 tokens";
  }
}

struct Text {
  std::vector<std::int32_t> prompt;
  int tokens;
  SamplingOptions sampling;
  int stop_after;  // tokens after which the caller stops
};

std::vector<Text> texts(std::int64_t vocab) {
  std::vector<Text> list;
  const int lengths[] = {5, 100, 1, 64, 70, 131, 3, 17}, tokens[] = {12, 7, 60, 1, 0, 9, 33, 20};
  for (int i = 0; i < 8; ++i) {
    Text t{.prompt = {}, .tokens = tokens[i], .sampling = {}, .stop_after = i == 6 ? 4 : 1000};
    for (int k = 0; k < lengths[i]; ++k) t.prompt.push_back(static_cast<std::int32_t>((k * 7 + i * 31) % vocab));
    if (i % 3 == 1) t.sampling = {.temperature = 1, .top_k = 20, .seed = static_cast<std::uint64_t>(i)};
    list.push_back(std::move(t));
  }
  return list;
}

std::vector<std::int32_t> alone(const models::LanguageModel& model, Pool& pool, const Text& t, const Numerics& numerics,
                                DType kv = DType::none) {
  Engine engine(model, pool, {.kv = kv, .numerics = numerics});
  std::vector<std::int32_t> out;
  const auto stats = engine.generate(t.prompt, t.tokens, t.sampling, [&](std::int32_t id) {
    out.push_back(id);
    return std::ssize(out) < t.stop_after;
  });
  EXPECT_EQ(stats.new_tokens, std::ssize(out));
  EXPECT_EQ(stats.prompt_tokens, std::ssize(t.prompt));
  expect_all_pages(engine);
  return out;
}

/// Texts of an engine with few pages, in which some wait or are preempted, against each of them in an engine of its own.
void expect_texts_of_one(const models::LanguageModel& model, Pool& pool, const Numerics& numerics,
                         std::int64_t pages = 8, std::int64_t budget = 80, DType kv = DType::none) {
  const auto list = texts(model.config().vocab);
  std::vector<std::vector<std::int32_t>> got(list.size());
  std::vector<int> ends(list.size());
  Engine engine(model, pool, {.sequences = 5, .pages = pages, .budget = budget, .kv = kv, .numerics = numerics});
  const auto submit = [&](std::size_t i) {
    const auto& t = list[i];
    engine.submit({.prompt = t.prompt,
                   .tokens = t.tokens,
                   .sampling = t.sampling,
                   .on_token =
                       [&, i](const Token& token) {
                         got[i].push_back(token.id);
                         return std::ssize(got[i]) < list[i].stop_after;
                       },
                   .on_end =
                       [&, i](const End& end) {
                         ++ends[i];
                         EXPECT_EQ(end.stats.new_tokens, std::ssize(got[i]));
                       }});
  };
  for (std::size_t i = 0; i < 6; ++i) submit(i);
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(engine.step());
  for (std::size_t i = 6; i < list.size(); ++i) submit(i);  // others have begun
  engine.run();
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(got[i], alone(model, pool, list[i], numerics, kv)) << "text " << i;
    EXPECT_EQ(ends[i], 1) << "text " << i;
  }
  expect_all_pages(engine);
}

TEST(Engine, texts_do_not_depend_on_those_beside_them) {
  Pool pool(2);
  for (const auto family : models::text_families()) {
    SCOPED_TRACE(io::enum_name(family));
    const auto model = with_clear_logits(family);
    expect_texts_of_one(model, pool, {.row_invariant = true});
    expect_texts_of_one(model, pool, {.row_invariant = true}, 4, 70);
    expect_texts_of_one(model, pool, {.row_invariant = true}, 100, 500);
    expect_texts_of_one(model, pool, {});
    for (const DType kv : {DType::i8, DType::f8_e4m3, DType::bf16})
      expect_texts_of_one(model, pool, {.row_invariant = true}, 4, 70, kv);
  }
}

void expect_reuse_of_keys(io::Family family, DType kv) {
  SCOPED_TRACE(fmt::format("{}, {}", io::enum_name(family), dtype_name(kv)));
  Pool pool(2);
  const auto model = with_clear_logits(family);
  const Numerics invariant{.row_invariant = true};
  const auto prompt = ids_from(3, 100);
  const auto want = alone(model, pool, {prompt, 50, {}, 1000}, invariant, kv);
  Engine engine(model, pool, {.sequences = 3, .kv = kv, .numerics = invariant});
  Heard first, again, longer, other, salted;
  submit(engine, {.prompt = prompt, .tokens = 50}, first);
  engine.run();
  EXPECT_EQ(first.end.stats.cached_tokens, 0);
  submit(engine, {.prompt = prompt, .tokens = 50}, again);
  auto text = prompt;
  text.insert(text.end(), want.begin(), want.begin() + 30);
  submit(engine, {.prompt = text, .tokens = 20}, longer);
  auto changed = prompt;
  changed[70] = (changed[70] + 1) % 50;
  submit(engine, {.prompt = changed, .tokens = 20}, other);
  submit(engine, {.prompt = prompt, .tokens = 50, .cache_salt = "another user"}, salted);
  engine.run();
  EXPECT_EQ(first.ids, want);
  EXPECT_EQ(again.ids, want);
  EXPECT_EQ(again.end.stats.cached_tokens, 99) << "the last token is processed for its logits";
  EXPECT_EQ(longer.ids, std::vector<std::int32_t>(want.begin() + 30, want.end()));
  EXPECT_EQ(longer.end.stats.cached_tokens, 129);
  EXPECT_EQ(other.ids, alone(model, pool, {changed, 20, {}, 1000}, invariant, kv));
  EXPECT_EQ(other.end.stats.cached_tokens, 70);
  EXPECT_EQ(salted.ids, want);
  EXPECT_EQ(salted.end.stats.cached_tokens, 0);
  expect_all_pages(engine);
}

TEST(Engine, a_text_finds_the_keys_of_its_beginning) {
  for (const auto family : models::text_families())
    for (const DType kv : {DType::none, DType::i8}) expect_reuse_of_keys(family, kv);
}

TEST(Engine, equal_prompts_that_arrive_together_are_processed_once) {
  Pool pool(2);
  const auto model = with_clear_logits(io::Family::llama);
  Engine engine(model, pool, {.sequences = 4, .budget = 70, .numerics = {.row_invariant = true}});
  std::vector<Heard> heard(4);
  for (auto& h : heard) submit(engine, {.prompt = ids_from(3, 140), .tokens = 9}, h);
  engine.run();
  for (auto& h : heard) EXPECT_EQ(h.ids, heard[0].ids);
  EXPECT_EQ(heard[0].end.stats.cached_tokens, 0);
  for (int i = 1; i < 4; ++i) EXPECT_GE(heard[static_cast<std::size_t>(i)].end.stats.cached_tokens, 128);
}

TEST(Engine, short_prompts_that_arrive_together_begin_together) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  constexpr int kTexts = 150;  // two passes
  Engine engine(model, pool, {.context = 16, .sequences = kTexts, .budget = 2 * kTexts, .reuse_prefixes = false});
  for (int i = 0; i < kTexts; ++i)
    engine.submit({.prompt = ids_from(i, 3), .tokens = 8, .sampling = {.ignore_eos = true}});
  engine.step();
  EXPECT_EQ(engine.state().running, 100);
  engine.step();
  EXPECT_EQ(engine.state().waiting, 0);
}

TEST(Engine, a_text_that_is_preempted_goes_on_with_the_same_tokens) {
  Pool pool(2);
  for (const bool reuse : {true, false}) {
    const auto model = with_clear_logits(io::Family::llama);
    const Numerics invariant{.row_invariant = true};
    Engine engine(model, pool,
                  {.sequences = 4, .pages = 4, .budget = 80, .reuse_prefixes = reuse, .numerics = invariant});
    std::vector<Heard> heard(4);
    for (std::size_t i = 0; i < 4; ++i)
      submit(engine, {.prompt = ids_from(static_cast<int>(i), 20), .tokens = 130, .priority = i == 3 ? 1 : 0},
             heard[i]);
    engine.run();
    EXPECT_GT(engine.state().preemptions, 0);
    EXPECT_EQ(heard[3].end.stats.preemptions, 0) << "the one with the highest priority";
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(heard[i].ids, alone(model, pool, {ids_from(static_cast<int>(i), 20), 130, {}, 1000}, invariant)) << i;
    expect_all_pages(engine);
  }
}

TEST(Engine, priorities_decide_who_begins) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::gpt2);
  Engine engine(model, pool);
  std::vector<int> order;
  for (const int priority : {0, 2, 1, 2})
    engine.submit({.prompt = {1}, .tokens = 1, .priority = priority, .on_end = [&, priority](const End&) {
                     order.push_back(priority);
                   }});
  engine.run();
  EXPECT_EQ(order, (std::vector<int>{2, 2, 1, 0}));
}

TEST(Engine, cancelled_texts_free_their_pages) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  Engine engine(model, pool, {.sequences = 2});
  Heard runs, waits, third, heard;
  const auto a = submit(engine, {.prompt = ids_from(1, 100), .tokens = 50}, runs);
  submit(engine, {.prompt = ids_from(2, 100), .tokens = 50}, heard);
  const auto b = submit(engine, {.prompt = ids_from(3, 100), .tokens = 50}, waits);
  for (int i = 0; i < 3; ++i) engine.step();
  EXPECT_EQ(engine.state().waiting, 1);
  EXPECT_TRUE(engine.cancel(a));
  EXPECT_EQ(runs.ends, 1);
  EXPECT_EQ(runs.end.reason, End::Reason::cancelled);
  EXPECT_EQ(runs.end.stats.new_tokens, std::ssize(runs.ids));
  EXPECT_TRUE(engine.cancel(b));
  EXPECT_EQ(waits.ends, 1);
  EXPECT_FALSE(engine.cancel(a));
  EXPECT_FALSE(engine.cancel(12345));
  const auto held = engine.state();
  EXPECT_EQ(held.running, 1);
  EXPECT_EQ(held.pages - held.free_pages - held.cached_pages, 2) << "those of the other text";
  RequestId own = 0;  // from a callback
  own = engine.submit({.prompt = {1},
                       .tokens = 50,
                       .on_token = [&](const Token&) { return engine.cancel(own); },
                       .on_end = [&](const End& e) { third.end = e; }});
  engine.run();
  EXPECT_EQ(third.end.reason, End::Reason::cancelled);
  EXPECT_EQ(third.end.stats.new_tokens, 1);
  EXPECT_EQ(std::ssize(heard.ids), 50);
  expect_all_pages(engine);
}

TEST(Engine, ends_texts_as_their_options_say) {
  Pool pool(1);
  const auto free = with_clear_logits(io::Family::llama);
  const auto want = alone(free, pool, {ids_from(1, 10), 20, {}, 1000}, {});
  const auto id = want[5];
  const auto until = std::find(want.begin(), want.end(), id) - want.begin() + 1;
  const auto model = with_clear_logits(io::Family::llama, {id});
  const auto run = [&](const models::LanguageModel& m, SamplingOptions o, std::int64_t vocab = 0) {
    Engine engine(m, pool, {.vocab = vocab});
    Heard heard;
    submit(engine, {.prompt = ids_from(1, 10), .tokens = 20, .sampling = std::move(o)}, heard);
    engine.run();
    return heard;
  };
  auto h = run(model, {});
  EXPECT_EQ(h.end.reason, End::Reason::eos);
  EXPECT_EQ(h.ids, std::vector<std::int32_t>(want.begin(), want.begin() + until));
  h = run(model, {.ignore_eos = true});
  EXPECT_EQ(h.end.reason, End::Reason::length);
  EXPECT_EQ(h.ids, want);
  h = run(free, {.stop_ids = {id}});
  EXPECT_EQ(h.end.reason, End::Reason::stop);
  EXPECT_EQ(h.ids, std::vector<std::int32_t>(want.begin(), want.begin() + until));
  h = run(model, {.min_tokens = 15});
  EXPECT_GE(std::ssize(h.ids), 15);
  EXPECT_EQ(std::find(h.ids.begin(), h.ids.begin() + 15, id), h.ids.begin() + 15);
  h = run(free, {.temperature = 5}, 20);
  for (const auto token : h.ids) EXPECT_LT(token, 20) << "a token that the tokenizer lacks";
  EXPECT_THROW(run(free, {}, 51), Error);
}

TEST(Engine, a_constraint_decides_what_may_come) {
  struct Counting final : TokenConstraint {
    std::int32_t next = 30;
    void mask(std::span<std::uint32_t> allowed) override {
      std::fill(allowed.begin(), allowed.end(), 0u);
      if (next < 34) allowed[static_cast<std::size_t>(next) / 32] = 1u << next % 32;
    }
    void accept(std::int32_t id) override { EXPECT_EQ(id, next++); }
  };
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::gpt2);
  Engine engine(model, pool, {.sequences = 2});
  Heard counts, fails, free;
  submit(engine, {.prompt = {1}, .tokens = 4, .constraint = std::make_shared<Counting>()}, counts);
  submit(engine, {.prompt = {1}, .tokens = 9, .constraint = std::make_shared<Counting>()}, fails);
  submit(engine, {.prompt = {1}, .tokens = 9}, free);
  engine.run();
  EXPECT_EQ(counts.ids, (std::vector<std::int32_t>{30, 31, 32, 33}));
  EXPECT_EQ(fails.end.reason, End::Reason::failed);
  EXPECT_NE(fails.end.message.find("leave no token"), std::string::npos) << fails.end.message;
  EXPECT_EQ(free.ids, alone(model, pool, {{1}, 9, {}, 1000}, {}));
}

TEST(Engine, logprobs_of_new_tokens_are_those_of_the_finished_text_as_a_prompt) {
  Pool pool(2);
  for (const auto family : models::text_families()) {
    const auto model = with_clear_logits(family);
    Engine engine(model, pool, {.sequences = 2, .budget = 66, .numerics = {.row_invariant = true}});
    const auto prompt = ids_from(5, 80);
    Heard beside, drawn, scored;
    submit(engine, {.prompt = ids_from(1, 70), .tokens = 80}, beside);
    submit(engine, {.prompt = prompt, .tokens = 30, .sampling = {.temperature = 1.5f, .seed = 4, .logprobs = 2}},
           drawn);
    engine.run();
    auto text = prompt;
    text.insert(text.end(), drawn.ids.begin(), drawn.ids.end());
    submit(engine, {.prompt = text, .tokens = 0, .prompt_logprobs = 3}, scored);
    engine.run();
    EXPECT_EQ(scored.end.reason, End::Reason::length);
    const auto& all = scored.end.prompt_logprobs;
    ASSERT_EQ(all.size(), text.size() - 1);
    for (std::size_t i = 0; i < drawn.ids.size(); ++i) {
      const auto& t = all[prompt.size() + i - 1];
      EXPECT_EQ(t.id, drawn.ids[i]);
      EXPECT_EQ(t.logprob, drawn.logprobs[i]) << i;
      ASSERT_EQ(t.top.size(), 3u);
      EXPECT_GE(t.top[0].logprob, t.logprob);
    }
    EXPECT_TRUE(drawn.end.prompt_logprobs.empty());
  }
}

TEST(Engine, a_text_with_nan_fails_alone) {
  Pool pool(1);
  auto model = with_clear_logits(io::Family::llama);
  for (auto& p : model.parameters())
    if (p.name.find("embed_tokens") != std::string::npos)
      for (std::int64_t i = 0; i < p.memory[1]; ++i) p.memory.ptr<float>()[49 * p.memory[1] + i] = NAN;
  Engine engine(model, pool, {.sequences = 2});
  Heard good, bad;
  submit(engine, {.prompt = {1, 2, 3}, .tokens = 9, .sampling = {.banned_ids = {49}}}, good);
  submit(engine, {.prompt = {1, 49, 3}, .tokens = 9}, bad);
  engine.run();
  EXPECT_EQ(bad.end.reason, End::Reason::failed);
  EXPECT_NE(bad.end.message.find("NaN"), std::string::npos) << bad.end.message;
  EXPECT_EQ(good.end.reason, End::Reason::length);
  EXPECT_EQ(good.ids, alone(model, pool, {{1, 2, 3}, 9, {.banned_ids = {49}}, 1000}, {}));
  EXPECT_THROW(engine.generate(std::vector<std::int32_t>{49}, 2, {}, [](std::int32_t) { return true; }), Error);
  expect_all_pages(engine);
}

// Texts with common beginnings share few pages, and some are cancelled at random.
TEST(Engine, gives_every_page_back_after_any_use) {
  Pool pool(1);
  const auto model = with_clear_logits(io::Family::llama);
  Engine engine(model, pool, {.sequences = 6, .pages = 7, .budget = 80, .numerics = {.row_invariant = true}});
  const Rng rng{11, 2};
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t n) { return static_cast<int>(rng.below(draws++, n)); };
  std::deque<Heard> heard;
  std::deque<Request> asked;
  std::vector<RequestId> ids;
  for (int step = 0; step < 800; ++step) {
    if (step < 600 && draw(3) > 0) {
      Request r{.prompt = ids_from(draw(3), 1 + draw(110)), .tokens = 1 + draw(49), .priority = draw(2)};
      if (draw(2) == 0) r.sampling = {.temperature = 1, .top_k = 5, .seed = static_cast<std::uint64_t>(step)};
      asked.push_back(r);
      ids.push_back(submit(engine, std::move(r), heard.emplace_back()));
    }
    if (draw(12) == 0 && !ids.empty()) engine.cancel(ids[static_cast<std::size_t>(draw(ids.size()))]);
    engine.step();
  }
  engine.run();
  expect_all_pages(engine);
  EXPECT_GT(engine.state().preemptions, 0);
  EXPECT_GT(engine.state().cached_tokens, 0);
  int cancelled = 0;
  for (std::size_t i = 0; i < heard.size(); ++i) {
    EXPECT_EQ(heard[i].ends, 1);
    if (heard[i].end.reason == End::Reason::cancelled) {
      ++cancelled;
    } else if (i % 7 == 0) {
      const Text t{asked[i].prompt, asked[i].tokens, asked[i].sampling, 1000};
      EXPECT_EQ(heard[i].ids, alone(model, pool, t, {.row_invariant = true}));
    }
  }
  EXPECT_GT(cancelled, 5);
}

TEST(Engine, texts_on_a_gpu_do_not_depend_on_those_beside_them) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const io::TempFolder temp;
  Pool pool(2);
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    const auto fresh = with_clear_logits(family);
    fresh.save(temp.path(), DType::f32);
    auto model = models::LanguageModel::open(temp.path());
    model.to_device(Stream(Device::cuda(0), pool));
    expect_texts_of_one(model, pool, {});
  }
}

TEST(Engine, a_callback_that_throws_leaves_it_usable) {
  Pool pool(1);
  const auto model = models::LanguageModel::create(models::tiny(io::Family::llama), 3, false);
  Engine engine(model, pool, {.context = 16, .sequences = 2});
  const std::vector<std::int32_t> prompt{1, 2, 3};
  engine.submit({.prompt = prompt, .tokens = 5});
  engine.submit({.prompt = prompt, .tokens = 5, .on_token = [](const Token&) -> bool { throw Error("it has left"); }});
  EXPECT_THROW(engine.run(), Error);
  EXPECT_FALSE(engine.step());
  expect_all_pages(engine);
  std::vector<std::int32_t> got;
  engine.generate(prompt, 5, {}, [&](std::int32_t id) { return got.push_back(id), true; });
  EXPECT_EQ(got, alone(model, pool, {prompt, 5, {}, 1000}, {}));
}

TEST(Engine, refuses_what_does_not_fit) {
  Pool pool(1);
  const auto model = models::LanguageModel::create(models::tiny(io::Family::gpt2), 3, false);
  const auto context = model.config().context;
  EXPECT_THROW(Engine(model, pool, {.context = context + 1}), Error);
  EXPECT_THROW(Engine(model, pool, {.sequences = 0}), Error);
  EXPECT_THROW(Engine(model, pool, {.sequences = 8, .budget = 71}), Error) << "a chunk of a prompt must fit beside all";
  Engine engine(model, pool, {.context = 8});
  EXPECT_THROW(engine.submit({.prompt = {}, .tokens = 1}), Error);
  EXPECT_THROW(engine.submit({.prompt = {1, 2}, .tokens = 7}), Error);
  EXPECT_THROW(engine.submit({.prompt = {-1}, .tokens = 1}), Error);
  EXPECT_THROW(engine.submit({.prompt = {1}, .tokens = 1, .sampling = {.banned_ids = {50}}}), Error);
  EXPECT_FALSE(engine.step()) << "nothing was queued";
}

TEST(Engine, a_cpu_computes_in_f32) {
  const io::TempFolder temp;
  Pool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = opened(temp, io::Family::llama, dtype);
    EXPECT_EQ(model.matrix_type(), dtype);
    EXPECT_EQ(Engine(model, pool, {.context = 8}).dtype(), DType::f32);
  }
}

}  // namespace
}  // namespace hpcdl::infer
