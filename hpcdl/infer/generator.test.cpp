#include "hpcdl/infer/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "hpcdl/graph/instance.h"
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

/// Logits of the last of `ids`, in f32 on a CPU.
std::vector<float> logits_of(const models::LanguageModel& model, Pool& pool, const std::vector<std::int32_t>& ids) {
  Graph g({.inference = true});
  const Var tokens = g.input("tokens", {{1, std::ssize(ids)}, DType::i32});
  const Var y = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish());
  StepParams params;
  Stream s(pool, &params);
  copy(s, exe.tensor(tokens), View(ids.data(), exe.tensor(tokens).spec()));
  exe.run(s);
  const Tensor all = exe.tensor(y);
  const float* last = all.ptr<float>() + all.size() - all.cols();
  return {last, last + all.cols()};
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
