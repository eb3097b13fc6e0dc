#include "hpcdl/infer/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"

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
  Engine engine(model, pool, {.context = 16});
  EXPECT_EQ(engine.dtype(), dtype);
  std::vector<std::int32_t> text{1, 12, 23, 34, 45};  // programs of 4 and 1 tokens
  const std::vector<std::int32_t> prompt = text;
  engine.generate(prompt, 8, {}, [&](std::int32_t id) {
    const auto want = logits_of(on_cpu, pool, text);
    const float best = *std::max_element(want.begin(), want.end()), least = *std::min_element(want.begin(), want.end());
    EXPECT_GE(want[static_cast<std::size_t>(id)], best - 0.1f * (best - least)) << "token " << text.size();
    text.push_back(id);
    return true;
  });
  EXPECT_EQ(text.size(), prompt.size() + 8);
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
    EXPECT_EQ(of_a[i]->planned() == of_larger[i]->planned(), i == 1) << "only the head does not depend on the pool";
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
  const KvPool memory(model.config().layers, pool_spec(model, kPages), Device());
  BatchMemory batch({.tokens = std::ssize(ids), .pages = kPages}, Device());
  Stream s(pool);
  const Instance head(*head_pass(model, numerics));
  std::vector<float> all;
  std::int64_t done = 0;
  for (const auto n : cuts) {
    const BatchLayout layout{.tokens = n, .pages = kPages, .pool_pages = kPages};
    const auto pass = batch_pass(model, layout, numerics);
    auto bindings = pass->bindings;
    memory.bind(bindings), batch.bind(layout, bindings);
    const Instance step(pass->planned, std::move(bindings));
    const BatchRow row{pages, done};
    batch.set(s, layout, {&row, 1});
    copy(s, step.input(0), View(ids.data() + done, step.input(0).spec()));
    step.run(s);
    done += n;
    for (std::int64_t i = 0; i < n; ++i) {
      const Tensor hidden = head.input(0);
      copy(s, hidden, View(step.output(0).ptr<float>() + i * hidden.size(), hidden.spec()));
      head.run(s);
      const Tensor y = head.output(0);
      all.insert(all.end(), y.ptr<float>(), y.ptr<float>() + y.size());
    }
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

std::vector<std::int32_t> alone(const models::LanguageModel& model, Pool& pool, const Text& t,
                                const Numerics& numerics) {
  Engine engine(model, pool, {.numerics = numerics});
  std::vector<std::int32_t> out;
  const auto stats = engine.generate(t.prompt, t.tokens, t.sampling, [&](std::int32_t id) {
    out.push_back(id);
    return std::ssize(out) < t.stop_after;
  });
  EXPECT_EQ(stats.new_tokens, std::ssize(out));
  EXPECT_EQ(stats.prompt_tokens, std::ssize(t.prompt));
  EXPECT_EQ(engine.pages().free_pages(), engine.pages().pages());
  return out;
}

/// Texts of an engine with few pages, in which some wait, against each of them in an engine of its own.
void expect_texts_of_one(const models::LanguageModel& model, Pool& pool, const Numerics& numerics) {
  const auto list = texts(model.config().vocab);
  std::vector<std::vector<std::int32_t>> got(list.size());
  std::vector<int> ends(list.size());
  Engine engine(model, pool, {.sequences = 5, .pages = 8, .budget = 80, .numerics = numerics});
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
    EXPECT_EQ(got[i], alone(model, pool, list[i], numerics)) << "text " << i;
    EXPECT_EQ(ends[i], 1) << "text " << i;
  }
  EXPECT_EQ(engine.pages().free_pages(), 8);
}

TEST(Engine, texts_do_not_depend_on_those_beside_them) {
  Pool pool(2);
  for (const auto family : models::text_families()) {
    SCOPED_TRACE(io::enum_name(family));
    auto config = models::tiny(family);
    config.context = 160;
    models::resolve(config);
    auto model = models::LanguageModel::create(config, 3, false);
    for (auto& p : model.parameters())  // larger than fresh weights, so that the logits differ clearly
      for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
    expect_texts_of_one(model, pool, {.row_invariant = true});
    expect_texts_of_one(model, pool, {});
  }
}

TEST(Engine, texts_on_a_gpu_do_not_depend_on_those_beside_them) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const io::TempFolder temp;
  Pool pool(2);
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    auto config = models::tiny(family);
    config.context = 160;
    models::resolve(config);
    auto fresh = models::LanguageModel::create(config, 3, false);
    for (auto& p : fresh.parameters())
      for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
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
  EXPECT_EQ(engine.pages().free_pages(), engine.pages().pages());
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
