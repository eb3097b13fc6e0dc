// A GPU trains like a CPU. Skipped without a GPU.

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/core/tolerance.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kBatch = 3, kLength = 40, kVocab = 300;

io::ModelConfig small_model(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 4, c.width = 64, c.context = 64, c.vocab = kVocab;
  if (family != io::Family::gpt2) c.kv_heads = 2, c.tied = false;
  // Every token goes through all experts: rounding would send some to others.
  if (models::row_of(family).mixture) c.experts = c.chosen_experts = 4;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> ids(std::uint32_t seed) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(kBatch * kLength));
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % kVocab;
  return list;
}

struct Trace {
  std::vector<StepResult> steps;
  std::vector<float> weights;
};

/// A model whose products are too large for the exact kernel for small ones.
io::ModelConfig wide_model() {
  auto c = small_model(io::Family::gpt2);
  c.width = 512, c.ffn = c.head_dim = 0;
  models::resolve(c);
  return c;
}

Trace train(const io::ModelConfig& config, Device device, DType compute, StepOptions o = {}) {
  Pool pool(2);
  auto model = models::LanguageModel::create(config, 3, true);
  o.batch = kBatch, o.length = kLength, o.forward.compute = compute;
  if (compute == DType::f16) o.scaler = GradScaler::Options{};
  TrainStep step(model, pool, o, device);
  Trace t;
  for (int i = 0; i < 8; ++i) {
    step.accumulate(ids(5), ids(6), i, 0);
    t.steps.push_back(step.update(3e-3, kBatch * kLength));
  }
  step.fetch();
  for (const auto& w : step.weights())
    t.weights.insert(t.weights.end(), w.tensor.ptr<float>(), w.tensor.ptr<float>() + w.tensor.size());
  return t;
}

Trace train(io::Family family, Device device, DType compute, StepOptions o = {}) {
  return train(small_model(family), device, compute, std::move(o));
}

using Case = std::tuple<io::Family, DType>;
class GpuStep : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
  io::Family family() const { return std::get<0>(GetParam()); }
  DType compute() const { return std::get<1>(GetParam()); }
};

/// Against f32 on a CPU. The loss of one token is a log-sum of logits of size about 1, each a sum of rounded products,
/// so its error is a few units of the activations' type, and the mean over tokens is no worse. Later steps start from
/// weights that differ by as much.
TEST_P(GpuStep, trains_as_a_cpu_does) {
  const auto cpu = train(family(), Device::cpu(), DType::f32), gpu = train(family(), Device::cuda(0), compute());
  const double unit = half_ulp(compute());
  for (std::size_t i = 0; i < cpu.steps.size(); ++i) {
    const double allowed = (i == 0 ? 8 : 64) * unit + 64 * half_ulp(DType::f32);
    EXPECT_NEAR(gpu.steps[i].loss / cpu.steps[i].loss, 1, allowed) << "loss of step " << i;
    EXPECT_NEAR(gpu.steps[i].grad_norm / cpu.steps[i].grad_norm, 1, 4 * allowed) << "gradient norm of step " << i;
  }
  EXPECT_LT(gpu.steps.back().loss, 0.9 * gpu.steps.front().loss);
}

TEST_P(GpuStep, the_same_bits_every_time) {
  StepOptions recompute, direct;
  recompute.forward.recompute = true;
  recompute.forward.dropout = direct.forward.dropout = 0.1f;
  const auto a = train(family(), Device::cuda(0), compute(), direct),
             b = train(family(), Device::cuda(0), compute(), direct),
             c = train(family(), Device::cuda(0), compute(), recompute);
  EXPECT_EQ(a.weights, b.weights) << "two runs differ";
  EXPECT_EQ(a.weights, c.weights) << "recomputation changes the result";
}

/// What is copied while the next passes run is what the step left.
TEST_P(GpuStep, copies_weights_while_passes_run) {
  Pool pool(2);
  auto model = models::LanguageModel::create(small_model(family()), 3, true);
  StepOptions o;
  o.batch = kBatch, o.length = kLength, o.forward.compute = compute();
  TrainStep step(model, pool, o, Device::cuda(0));
  step.prepare_fetch();
  const auto values = [&] {
    std::vector<float> list;
    for (const auto& tensors : {step.weights(), step.optimizer_state()})
      for (const auto& t : tensors)
        list.insert(list.end(), t.tensor.ptr<float>(), t.tensor.ptr<float>() + t.tensor.size());
    return list;
  };
  const auto one_step = [&](int i) {
    step.accumulate(ids(5), ids(6), i, 0);
    step.update(3e-3, kBatch * kLength);
  };
  one_step(0);
  step.fetch();
  const auto after_one = values();
  const auto arrive = step.fetch_behind();
  one_step(1);
  arrive();
  EXPECT_EQ(values(), after_one);
  step.fetch();
  EXPECT_NE(values(), after_one);
}

/// Like f32 on a CPU, except for products whose operands have lost up to 2^-10 of themselves; exact f32 gives different
/// results.
TEST(gpu_step_tf32, trains_as_f32_does) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  StepOptions o;
  o.numerics.products = F32Products::tf32;
  const auto config = wide_model();
  const auto cpu = train(config, Device::cpu(), DType::f32), exact = train(config, Device::cuda(0), DType::f32),
             tf32 = train(config, Device::cuda(0), DType::f32, o),
             again = train(config, Device::cuda(0), DType::f32, o);
  for (std::size_t i = 0; i < cpu.steps.size(); ++i) {
    const auto near = [&](const StepResult& gpu, double unit) {
      const double allowed = (i == 0 ? 8 : 64) * unit + 64 * half_ulp(DType::f32);
      EXPECT_NEAR(gpu.loss / cpu.steps[i].loss, 1, allowed) << "loss of step " << i;
      EXPECT_NEAR(gpu.grad_norm / cpu.steps[i].grad_norm, 1, 4 * allowed) << "gradient norm of step " << i;
    };
    if (i == 0)
      near(exact.steps[i], half_ulp(DType::f32));  // by then AdamW has turned noise in a gradient into full steps
    near(tf32.steps[i], 0x1p-10);
  }
  EXPECT_EQ(tf32.weights, again.weights) << "two runs differ";
  EXPECT_NE(tf32.weights, exact.weights) << "TF32 was not used";
}

INSTANTIATE_TEST_SUITE_P(gpu, GpuStep,
                         testing::Combine(testing::Values(io::Family::gpt2, io::Family::llama, io::Family::mixtral),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& each) {
                           return fmt::format("{}_{}", io::enum_name(std::get<0>(each.param)),
                                              dtype_name(std::get<1>(each.param)));
                         });

}  // namespace
}  // namespace hpcdl::train
