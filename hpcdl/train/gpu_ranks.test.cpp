// Several GPUs train like one: ranks that are threads, each with its own GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

constexpr std::int64_t kBatch = 8, kLength = 40, kVocab = 300;  // over all ranks
constexpr int kSteps = 12;

struct Trace {
  std::vector<double> losses;
  std::vector<float> weights;
};

io::ModelConfig small_model() {
  io::ModelConfig c;
  c.layers = 2, c.heads = 4, c.width = 64, c.context = 64, c.vocab = kVocab;
  models::resolve(c);
  return c;
}

/// This rank's part of the batch of a step.
std::vector<std::int32_t> ids(std::uint32_t seed, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(kBatch * kLength));
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % kVocab;
  return {list.begin() + begin * kLength, list.begin() + end * kLength};
}

struct How {
  DType compute = DType::f32;
  bool overlap = true;
  int micro_batches = 1;
  std::int64_t bucket_bytes = 64 << 10;
  comm::Algorithm algorithm = comm::Algorithm::automatic;
  int zero = 0;
};

Trace train_on(int n, const How& how) {
  std::vector<Trace> all(static_cast<std::size_t>(n));
  hpcdl::testing::run_ranks(n, [&](const comm::Group& world) {
    Pool pool(1);
    auto model = models::LanguageModel::create(small_model(), 3, true);
    const std::int64_t mine = kBatch / n, micro = mine / how.micro_batches;
    StepOptions o;
    o.optimizer = AdamW::Args{
        .eps = 1e-5f};  // gradients that consist only of rounding errors (biases of keys) must not become full steps
    o.batch = micro, o.length = kLength, o.accumulate = how.micro_batches > 1, o.forward.compute = how.compute;
    o.data = world, o.reduce = {.buckets = {.cap = how.bucket_bytes, .first = how.bucket_bytes / 4},
                                .overlap = how.overlap,
                                .algorithm = how.algorithm};
    o.zero = how.zero;
    TrainStep step(model, pool, o, Device::cuda(world.rank()));
    auto& t = all[static_cast<std::size_t>(world.rank())];
    for (int i = 0; i < kSteps; ++i) {
      for (int m = 0; m < how.micro_batches; ++m) {
        const std::int64_t begin = world.rank() * mine + m * micro;
        step.accumulate(ids(5, begin, begin + micro), ids(6, begin, begin + micro), i, m, m + 1 == how.micro_batches);
      }
      const auto r = step.update(3e-3, mine * kLength);
      t.losses.push_back(r.loss / static_cast<double>(r.valid_tokens));
    }
    step.fetch();
    step.with_whole_values([&] {
      for (const auto& p : model.parameters())
        t.weights.insert(t.weights.end(), p.host.ptr<float>(), p.host.ptr<float>() + p.host.size());
    });
  });
  for (const auto& t : all) EXPECT_EQ(t.weights, all[0].weights) << "ranks have different weights";
  return all[0];
}

class GpuRanks : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda_devices() < GetParam())
      GTEST_SKIP() << "SKIPPED: needs " << GetParam() << " GPUs, this process sees " << cuda_devices();
  }
};
INSTANTIATE_TEST_SUITE_P(, GpuRanks, ::testing::Values(2, 4, 8));

TEST_P(GpuRanks, train_as_one_does) {
  const auto one = train_on(1, {});
  for (const int micro : {1, 2}) {
    if (kBatch / GetParam() < micro) continue;
    const auto many = train_on(GetParam(), {.micro_batches = micro});
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i;
    double apart = 0;
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      apart = std::max(apart, std::fabs(double{many.weights[i]} - double{one.weights[i]}));
    EXPECT_LT(apart, 1e-5);
  }
  EXPECT_LT(one.losses.back(), 0.95 * one.losses.front());
}

TEST_P(GpuRanks, overlap_changes_no_bit) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    const auto beside = train_on(GetParam(), {.compute = compute}), again = train_on(GetParam(), {.compute = compute}),
               waited = train_on(GetParam(), {.compute = compute, .overlap = false});
    EXPECT_EQ(beside.weights, again.weights) << "two runs differ";
    EXPECT_EQ(beside.weights, waited.weights) << "results differ if reductions are awaited";
  }
}

/// Our kernels add by rank from 0, for any contents of a bucket.
TEST_P(GpuRanks, buckets_change_no_bit) {
  const auto small = train_on(GetParam(), {.bucket_bytes = 4 << 10, .algorithm = comm::Algorithm::shared}),
             large = train_on(GetParam(), {.bucket_bytes = 4 << 20, .algorithm = comm::Algorithm::shared});
  EXPECT_EQ(small.weights, large.weights);
}

/// Two GPUs add in one order.
TEST(GpuZero, stages_change_no_bit_of_two_gpus) {
  if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs";
  for (const auto compute : {DType::f32, DType::bf16})
    for (const int micro : {1, 2}) {
      const auto none = train_on(2, {.compute = compute, .micro_batches = micro});
      for (const int zero : {1, 2, 3}) {
        const auto divided = train_on(2, {.compute = compute, .micro_batches = micro, .zero = zero});
        EXPECT_EQ(divided.weights, none.weights) << "zero " << zero;
        EXPECT_EQ(divided.losses, none.losses) << "zero " << zero;
      }
    }
}

/// Frozen weights of 16 bits are divided with stage 3, too.
TEST(GpuZero, adapters_of_two_gpus_learn_the_same_bits) {
  if (cuda_devices() < 2) GTEST_SKIP() << "SKIPPED: needs 2 GPUs";
  const io::TempFolder tmp;
  models::LanguageModel::create(small_model(), 3, false).save(tmp / "base", DType::bf16);
  const auto adapter_after = [&](int zero, bool overlap) {
    std::vector<Trace> all(2);
    hpcdl::testing::run_ranks(2, [&](const comm::Group& world) {
      Pool pool(1);
      auto model = models::LanguageModel::open_for_adapting(
          tmp / "base", {.method = models::AdapterMethod::lora, .r = 8, .alpha = 16}, 5, {DType::bf16, &pool});
      const std::int64_t mine = kBatch / 2, begin = world.rank() * mine;
      StepOptions o{.batch = mine, .length = kLength};
      o.forward.compute = DType::bf16, o.data = world, o.reduce.overlap = overlap, o.zero = zero;
      TrainStep step(model, pool, o, Device::cuda(world.rank()));
      auto& t = all[static_cast<std::size_t>(world.rank())];
      for (int i = 0; i < kSteps; ++i) {
        step.accumulate(ids(5, begin, begin + mine), ids(6, begin, begin + mine), i, 0);
        t.losses.push_back(step.update(1e-2, mine * kLength).loss);
      }
      step.fetch();
      step.with_whole_values([&] {
        for (const auto& p : model.parameters())
          t.weights.insert(t.weights.end(), p.host.ptr<float>(), p.host.ptr<float>() + p.host.size());
      });
    });
    EXPECT_EQ(all[0].weights, all[1].weights);
    return all[0];
  };
  const auto none = adapter_after(0, true);
  for (const int zero : {2, 3})
    for (const bool overlap : {true, false}) {
      const auto divided = adapter_after(zero, overlap);
      EXPECT_EQ(divided.weights, none.weights) << "zero " << zero << ", overlap " << overlap;
      EXPECT_EQ(divided.losses, none.losses) << "zero " << zero << ", overlap " << overlap;
    }
}

}  // namespace
}  // namespace hpcdl::train
