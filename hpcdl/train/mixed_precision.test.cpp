// Training in 16 bits: autocast gives the same as types chosen by hand; and a loss scale on several ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/tolerance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::LanguageModel;
using models::tiny;
using models::tiny_ids;

std::vector<float> weights_of(LanguageModel& model) {
  std::vector<float> all;
  for (const auto& p : model.parameters())
    all.insert(all.end(), p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
  return all;
}

/// Losses per token over some steps on one batch.
std::vector<double> losses(io::Family family, const StepOptions& options) {
  Pool pool(2);
  auto model = LanguageModel::create(tiny(family), 3, true);
  TrainStep step(model, pool, options);
  std::vector<double> list;
  for (int i = 0; i < 30; ++i) {
    step.accumulate(tiny_ids(5), tiny_ids(6), i, 0);
    list.push_back(step.update(1e-2, 32).loss / 32);
  }
  return list;
}

using Case = std::tuple<io::Family, DType>;
class MixedPrecision : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(models, MixedPrecision,
                         ::testing::Combine(::testing::Values(io::Family::gpt2, io::Family::llama),
                                            ::testing::Values(DType::bf16, DType::f16)));

TEST_P(MixedPrecision, a_model_without_types_trains_as_one_that_names_them) {
  const auto [family, half] = GetParam();
  StepOptions plain{.batch = 2, .length = 16}, by_hand = plain, automatic = plain;
  if (half == DType::f16) by_hand.scaler = automatic.scaler = GradScaler::Options{};
  by_hand.forward.compute = half;
  automatic.autocast = AutocastPolicy{.product = half};
  const auto want = losses(family, by_hand), got = losses(family, automatic);
  EXPECT_LT(want.back(), 0.5 * want.front());
  // They differ by where the residual stream is first rounded: at most by the allowed error of a loss rounded to the
  // type.
  const double allowed = allowed_error(half, want.front(), 0, 0);
  double apart = 0;
  for (std::size_t i = 0; i < want.size(); ++i) apart = std::max(apart, std::fabs(want[i] - got[i]));
  EXPECT_GT(apart, 0) << "both runs used the same program";
  EXPECT_LE(apart, allowed);
}

struct Trace {
  std::vector<float> scales, weights;
  std::vector<double> losses;
};

/// Sixteen steps in f16 of two micro-batches each; only the last ranks of `world` have targets to learn from.
Trace train(const comm::Group& world, float init_scale) {
  Pool pool(1);
  auto model = LanguageModel::create(tiny(io::Family::llama), 3, true);
  TrainStep step(model, pool,
                 {.batch = 2,
                  .length = 16,
                  .accumulate = true,
                  .forward = {.compute = DType::f16},
                  .scaler = GradScaler::Options{.init_scale = init_scale, .growth_interval = 4},
                  .data = world});
  const bool learns = world.rank() + 1 == world.size();
  const auto targets = learns ? tiny_ids(6) : std::vector<std::int32_t>(32, -1);
  Trace t;
  for (int i = 0; i < 16; ++i) {
    for (int micro = 0; micro < 2; ++micro) step.accumulate(tiny_ids(5), targets, i, micro, micro == 1);
    const auto result = step.update(1e-2, learns ? 64 : 0);
    t.losses.push_back(result.loss);
    t.scales.push_back(step.scale_state().scale);
  }
  t.weights = weights_of(model);
  return t;
}

TEST(mixed_precision, ranks_skip_together) {
  constexpr float kFar = 0x1p28f;
  const Trace alone = train({}, kFar);
  EXPECT_LT(alone.scales[0], kFar) << "the first step must overflow";
  EXPECT_GT(*std::max_element(alone.scales.begin() + 4, alone.scales.end()),
            *std::min_element(alone.scales.begin(), alone.scales.end()));
  EXPECT_LT(alone.losses.back(), 0.9 * alone.losses.front());
  std::vector<Trace> all(2);
  testing::run_ranks(
      2, [&](const comm::Group& world) { all[static_cast<std::size_t>(world.rank())] = train(world, kFar); });
  for (const auto& t : all) {  // rank 0, whose own gradients are zero, acts like rank 1
    EXPECT_EQ(t.scales, alone.scales);
    EXPECT_EQ(t.losses, alone.losses);
    EXPECT_EQ(t.weights, alone.weights);
  }
}

}  // namespace
}  // namespace hpcdl::train
