// Training with products of 8-bit floats on a GPU, against their emulation on a CPU. Skipped without a GPU.

#include <gtest/gtest.h>

#include "hpcdl/core/tolerance.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kBatch = 4, kLength = 32, kVocab = 300;

std::vector<std::int32_t> ids(std::uint32_t seed) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(kBatch * kLength));
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % kVocab;
  return list;
}

struct Trace {
  std::vector<StepResult> steps;
  std::vector<float> weights, history;
};

Trace train(io::Family family, Device device, const models::Fp8Options& fp8, const nn::ForwardOptions& forward = {}) {
  io::ModelConfig config;
  config.family = family;
  config.layers = 4, config.heads = 4, config.width = 128, config.ffn = 400, config.context = 64, config.vocab = kVocab;
  if (family == io::Family::llama) config.kv_heads = 2, config.tied = false;
  models::resolve(config);
  Pool pool(2);
  auto model = models::LanguageModel::create(config, 3, true, {}, fp8);
  StepOptions o{.batch = kBatch, .length = kLength, .accumulate = true, .forward = forward};
  o.forward.compute = DType::bf16;
  TrainStep step(model, pool, o, device);
  Trace t;
  for (int i = 0; i < 8; ++i) {
    for (const int micro : {0, 1}) step.accumulate(ids(5), ids(6), i, micro, micro == 1);
    t.steps.push_back(step.update(3e-3, 2 * kBatch * kLength));
  }
  step.fetch();
  const auto append = [](std::vector<float>& to, const io::NamedTensor& w) {
    to.insert(to.end(), w.tensor.ptr<float>(), w.tensor.ptr<float>() + w.tensor.size());
  };
  for (const auto& w : step.weights()) append(w.name == "fp8.amax" ? t.history : t.weights, w);
  return t;
}

using Case = std::tuple<io::Family, models::Fp8Options>;
class GpuFp8 : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
  io::Family family() const { return std::get<0>(GetParam()); }
  models::Fp8Options fp8() const { return std::get<1>(GetParam()); }
};

/// Both compute activations in bf16, and round them to the same codes, but for those next to a tie that the error of an
/// activation moves across it. So the bounds are those of two trainings in bf16 (gpu_step.test.cpp).
TEST_P(GpuFp8, trains_as_the_emulation_does) {
  const auto cpu = train(family(), Device::cpu(), fp8()), gpu = train(family(), Device::cuda(0), fp8());
  for (std::size_t i = 0; i < cpu.steps.size(); ++i) {
    const double allowed = (i == 0 ? 8 : 64) * half_ulp(DType::bf16);
    EXPECT_NEAR(gpu.steps[i].loss / cpu.steps[i].loss, 1, allowed) << "loss of step " << i;
    if (i > 0) continue;  // by then AdamW has turned noise in a gradient into full steps
    EXPECT_NEAR(gpu.steps[i].grad_norm / cpu.steps[i].grad_norm, 1, 4 * allowed) << "gradient norm";
  }
  EXPECT_LT(gpu.steps.back().loss, 0.9 * gpu.steps.front().loss);
  ASSERT_EQ(gpu.history.size(), cpu.history.size());
  const auto tensors = gpu.history.size() / (1 + kAmaxSteps);
  for (std::size_t t = 0; t < tensors; ++t) {  // row 8 is of the first step
    const std::size_t at = 8 * tensors + t;
    EXPECT_NEAR(gpu.history[at] / cpu.history[at], 1, 64 * half_ulp(DType::bf16)) << "tensor " << t;
    EXPECT_EQ(gpu.history[t], 0) << "tensor " << t;
  }
}

TEST_P(GpuFp8, the_same_bits_every_time_and_others_than_those_of_bf16) {
  const auto a = train(family(), Device::cuda(0), fp8()), b = train(family(), Device::cuda(0), fp8()),
             again = train(family(), Device::cuda(0), fp8(), {.recompute = true}),
             wide = train(family(), Device::cuda(0), {});
  EXPECT_EQ(a.weights, b.weights) << "two runs differ";
  EXPECT_EQ(a.history, b.history) << "two runs differ";
  EXPECT_EQ(a.weights, again.weights) << "recomputation changes the result";
  EXPECT_EQ(a.history, again.history) << "recomputation changes the history";
  EXPECT_NE(a.steps.front().loss, wide.steps.front().loss) << "the products were not those of 8-bit floats";
}

INSTANTIATE_TEST_SUITE_P(gpu, GpuFp8,
                         testing::Combine(testing::Values(io::Family::gpt2, io::Family::llama),
                                          testing::Values(models::Fp8Options{.on = true},
                                                          models::Fp8Options{.on = true, .scales = Fp8Scales::current},
                                                          models::Fp8Options{.on = true, .scales = Fp8Scales::row})),
                         [](const testing::TestParamInfo<Case>& param) {
                           return std::string(io::enum_name(std::get<0>(param.param))) + "_" +
                                  std::string(io::enum_name(std::get<1>(param.param).scales));
                         });

}  // namespace
}  // namespace hpcdl::train
