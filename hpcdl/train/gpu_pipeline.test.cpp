// Two GPUs with different layers train like one: ranks that are threads, each with its own GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 40, kVocab = 300;
constexpr int kSteps = 12, kMicros = 4;

struct Trace {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

io::ModelConfig small_model() {
  io::ModelConfig c;
  c.family = io::Family::llama, c.tied = false;
  c.layers = 4, c.heads = 4, c.width = 64, c.context = 64, c.vocab = kVocab;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> ids(std::uint32_t seed) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(kBatch * kLength));
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % kVocab;
  return list;
}

Trace train_on(int n, const std::string& schedule, int chunks, DType compute) {
  std::vector<Trace> all(static_cast<std::size_t>(n));
  hpcdl::testing::run_ranks(n, [&](const comm::Group& world) {
    Pool pool(1);
    auto model = models::LanguageModel::create(small_model(), 3, true);
    StepOptions o{.batch = kBatch, .length = kLength, .accumulate = true};
    o.optimizer = AdamW::Args{.eps = 1e-5f};  // rounding errors must not become full steps
    o.forward.compute = compute;
    o.stages = {.group = world, .schedule = schedule, .chunks = chunks, .micros = kMicros};
    TrainStep step(model, pool, o, Device::cuda(world.rank()));
    step.choose_ways();  // loads kernels before ranks wait for each other
    auto& t = all[static_cast<std::size_t>(world.rank())];
    for (int i = 0; i < kSteps; ++i) {
      for (int m = 0; m < kMicros; ++m)
        step.accumulate(ids(static_cast<std::uint32_t>(2 * m)), ids(static_cast<std::uint32_t>(2 * m + 1)), i, m,
                        m + 1 == kMicros);
      const auto r = step.update(3e-3, kMicros * kBatch * kLength);
      t.losses.push_back(r.loss / static_cast<double>(r.valid_tokens));
      t.norms.push_back(r.grad_norm);
    }
    t.losses.push_back(step.evaluate(ids(90), ids(91)).loss);
    step.fetch();
    step.with_whole_values([&] {
      for (const auto& p : model.parameters())
        t.weights.insert(t.weights.end(), p.host.ptr<float>(), p.host.ptr<float>() + p.host.size());
    });
  });
  for (const auto& t : all) EXPECT_EQ(t.losses, all[0].losses) << "ranks have different losses";
  return all[0];
}

TEST(GpuPipeline, every_schedule_gives_the_same_bits) {
  if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs";
  for (const auto compute : {DType::f32, DType::bf16}) {
    const auto first = train_on(2, "1f1b", 1, compute);
    for (const auto& [schedule, chunks] : {std::pair{"gpipe", 1}, {"zero_bubble", 1}, {"interleaved", 2}, {"zbv", 2}}) {
      const auto other = train_on(2, schedule, chunks, compute);
      EXPECT_EQ(other.losses, first.losses) << schedule;
      EXPECT_EQ(other.norms, first.norms) << schedule;
      EXPECT_EQ(other.weights, first.weights) << schedule;
    }
    if (compute != DType::f32) continue;
    const auto one = train_on(1, "1f1b", 1, compute);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(first.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i;
    double apart = 0;
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      apart = std::max(apart, std::fabs(double{first.weights[i]} - double{one.weights[i]}));
    EXPECT_LT(apart, 1e-5);
  }
}

}  // namespace
}  // namespace hpcdl::train
