// Several GPUs that share a model continue texts like one: ranks that are threads, each with its own GPU.

#include <gtest/gtest.h>

#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/testing/shared_model.h"

namespace hpcdl::infer {
namespace {

using models::LanguageModel;

io::ModelConfig config_of(io::Family family, DType type) {
  io::ModelConfig c;
  c.family = family, c.dtype = type;
  c.layers = 3, c.heads = 8, c.width = 256, c.ffn = 512, c.context = 256, c.vocab = 1000;
  if (family != io::Family::gpt2) c.kv_heads = 2;
  if (models::row_of(family).mixture) c.experts = 8, c.chosen_experts = 2;
  models::resolve(c);
  return c;
}

LanguageModel model_of(const io::ModelConfig& config, Device device, models::Sharing sharing = {}) {
  Pool pool(1);
  auto model = LanguageModel::random(pool, config, 3, std::move(sharing));
  for (auto& p : model.parameters())  // larger than fresh weights, so that the logits differ clearly
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) {
      if (p.memory.dtype() == DType::f32) p.memory.ptr<float>()[i] *= 5;
      else p.memory.ptr<bf16>()[i] = bf16(5 * static_cast<float>(p.memory.ptr<bf16>()[i]));
    }
  model.to_device(Stream(device, pool));
  return model;
}

/// Texts alone and together, whose tokens the GPU or the host chooses.
std::vector<std::vector<std::int32_t>> texts_of(const LanguageModel& model, Pool& pool, RankLink* ranks = nullptr) {
  Engine engine(model, pool, {.sequences = 8, .budget = 128, .ranks = ranks});
  std::vector<Heard> heard(7);
  for (std::size_t i = 0; i < heard.size(); ++i) {
    Request r{.prompt = ids_from(static_cast<int>(i), static_cast<int>(1 + 40 * i % 97)), .tokens = 40};
    if (i == 3) r.sampling = {.temperature = 0.7F, .top_k = 30, .seed = 5};
    if (i == 5) r.sampling = {.repetition_penalty = 1.3F};
    submit(engine, std::move(r), heard[i]);
    if (i == 0) engine.run();
  }
  engine.run();
  std::vector<std::vector<std::int32_t>> texts;
  for (const auto& h : heard) {
    EXPECT_EQ(h.end.reason, End::Reason::length) << h.end.message;
    texts.push_back(h.ids);
  }
  return texts;
}

class GpuShared : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda_devices() < GetParam())
      GTEST_SKIP() << "SKIPPED: needs " << GetParam() << " GPUs, this process sees " << cuda_devices();
  }
};

TEST_P(GpuShared, texts_are_those_of_one_gpu_in_f32) {
  for (const auto family : {io::Family::gpt2, io::Family::llama, io::Family::qwen3, io::Family::mixtral}) {
    SCOPED_TRACE(io::enum_name(family));
    const auto config = config_of(family, DType::f32);
    Pool pool(1);
    const auto want = texts_of(model_of(config, Device::cuda(0)), pool);
    testing::run_ranks(GetParam(), [&](const comm::Group& world) {
      testing::on_shared_model(
          world, [&](models::Sharing s) { return model_of(config, Device::cuda(world.rank()), std::move(s)); },
          [&](const LanguageModel& model, Pool& own, RankLink& link) { EXPECT_EQ(texts_of(model, own, &link), want); });
    });
  }
}

/// Sums over ranks round, so that later tokens may differ, but runs repeat.
TEST_P(GpuShared, texts_repeat_in_16_bits) {
  const auto config = config_of(io::Family::llama, DType::bf16);
  testing::run_ranks(GetParam(), [&](const comm::Group& world) {
    testing::on_shared_model(
        world, [&](models::Sharing s) { return model_of(config, Device::cuda(world.rank()), std::move(s)); },
        [&](const LanguageModel& model, Pool& own, RankLink& link) {
          const auto first = texts_of(model, own, &link);
          EXPECT_EQ(texts_of(model, own, &link), first);
        });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuShared, ::testing::Values(2, 4),
                         [](const auto& param) { return std::to_string(param.param); });

}  // namespace
}  // namespace hpcdl::infer
