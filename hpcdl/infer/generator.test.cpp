#include "hpcdl/infer/generator.h"

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

class GeneratorOnGpu : public testing::TestWithParam<std::tuple<io::Family, DType>> {};

// Every token is, up to rounding errors, the most likely one for the same weights in f32 on a CPU.
TEST_P(GeneratorOnGpu, computes_in_the_type_of_the_weights) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto [family, dtype] = GetParam();
  const io::TempFolder temp;
  Pool pool(2);
  const auto on_cpu = opened(temp, family, dtype);
  auto model = models::LanguageModel::open(temp.path());
  model.to_device(Stream(Device::cuda(0), pool));
  Generator generator(model, pool, 16);
  EXPECT_EQ(generator.dtype(), dtype);
  std::vector<std::int32_t> text{1, 12, 23, 34, 45};  // programs of 4 and 1 tokens
  const std::vector<std::int32_t> prompt = text;
  generator.generate(prompt, 8, {}, [&](std::int32_t id) {
    const auto want = logits_of(on_cpu, pool, text);
    const float best = *std::max_element(want.begin(), want.end()), least = *std::min_element(want.begin(), want.end());
    EXPECT_GE(want[static_cast<std::size_t>(id)], best - 0.1f * (best - least)) << "token " << text.size();
    text.push_back(id);
    return true;
  });
  EXPECT_EQ(text.size(), prompt.size() + 8);
}

INSTANTIATE_TEST_SUITE_P(all, GeneratorOnGpu,
                         testing::Combine(testing::Values(io::Family::gpt2, io::Family::llama),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& c) {
                           return std::string(io::enum_name(std::get<0>(c.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(c.param)));
                         });

TEST(Generator, generators_of_a_model_share_its_programs) {
  Pool pool(1);
  auto model = models::LanguageModel::create(models::tiny(io::Family::llama), 3, false);
  const auto ids = [](Generator& g) {
    std::vector<std::int32_t> out;
    g.generate(std::vector<std::int32_t>{1, 2, 3}, 5, {}, [&](std::int32_t id) { return out.push_back(id), true; });
    return out;
  };
  Generator a(model, pool, 12), b(model, pool, 12), longer(model, pool, 13);
  const auto of_a = a.programs(3), of_b = b.programs(3), of_longer = longer.programs(3);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_EQ(of_a[i]->planned(), of_b[i]->planned());
    EXPECT_EQ(of_a[i]->planned() == of_longer[i]->planned(), i == 1) << "only the head does not depend on the cache";
  }
  const auto want = ids(a);
  EXPECT_EQ(ids(b), want);
  EXPECT_EQ(ids(a), want) << "the other generator has its own cache";
  model.keep_copies(DType::bf16);  // memory moves: programs are recorded again
  EXPECT_NE(Generator(model, pool, 12).programs(1)[0]->planned(), of_a[0]->planned());
}

/// Logits of every token of one row, which runs through steps of `cuts` tokens after each other.
std::vector<float> logits_of_steps(const models::LanguageModel& model, Pool& pool, const std::vector<std::int32_t>& ids,
                                   const std::vector<std::int64_t>& cuts, const Numerics& numerics) {
  constexpr std::int64_t kCapacity = 48;
  const auto& c = model.config();
  std::vector<OwnedTensor> memory;
  nn::KvCache cache;
  for (int i = 0; i < 2 * c.layers; ++i) {
    memory.emplace_back(Spec{{1, kCapacity, c.kv_heads * c.head_dim}, DType::f32});
    (i % 2 ? cache.values : cache.keys).push_back(memory.back().tensor);
  }
  StepParams params;
  Stream s(pool, &params);
  const Instance head(*head_pass(model, numerics));
  std::vector<float> all;
  for (const auto n : cuts) {
    const auto pass = step_pass(model, n, kCapacity, numerics);
    auto bindings = pass->bindings;
    cache.bind(bindings);
    const Instance step(pass->planned, std::move(bindings));
    copy(s, step.input(0), View(ids.data() + params.position, step.input(0).spec()));
    step.run(s);
    params.position += n;
    for (std::int64_t i = 0; i < n; ++i) {
      const Tensor row = head.input(0);
      copy(s, row, View(step.output(0).ptr<float>() + i * row.size(), row.spec()));
      head.run(s);
      const Tensor y = head.output(0);
      all.insert(all.end(), y.ptr<float>(), y.ptr<float>() + y.size());
    }
  }
  return all;
}

TEST(Generator, row_invariant_logits_do_not_depend_on_how_tokens_are_cut_or_batched) {
  constexpr Numerics kInvariant{.row_invariant = true};
  constexpr std::int64_t kTokens = 37;
  Pool pool(2);
  for (const auto family : models::text_families()) {
    SCOPED_TRACE(io::enum_name(family));
    auto config = models::tiny(family);
    config.heads = 4, config.kv_heads = 0, config.width = 160, config.context = 48, config.vocab = 200;
    config.head_dim = config.ffn = 0;
    models::resolve(config);
    const auto model = models::LanguageModel::create(config, 3, false);
    std::vector<std::int32_t> ids(kTokens);
    for (std::int64_t i = 0; i < kTokens; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % 200);
    const auto want = logits_of_batch(model, pool, 1, ids, kInvariant);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{32, 4, 1}, {1, 36}, {5, 3, 17, 12}, std::vector<std::int64_t>(kTokens, 1)})
      EXPECT_EQ(logits_of_steps(model, pool, ids, cuts, kInvariant), want) << cuts.size() << " steps";
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

TEST(Generator, a_cpu_computes_in_f32) {
  const io::TempFolder temp;
  Pool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = opened(temp, io::Family::llama, dtype);
    EXPECT_EQ(model.matrix_type(), dtype);
    EXPECT_EQ(Generator(model, pool, 8).dtype(), DType::f32);
  }
}

}  // namespace
}  // namespace hpcdl::infer
