#include "hpcdl/ops/lm_head_loss/lm_head_loss.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

const auto f32 = DType::f32;

// Outliers would produce logits of a thousand, and exp() turns an absolute error of a logit into a relative one of the
// gradient: the inputs are moderate, and `condition` is the magnitude of the logits.
const auto
    spec =
        testing::op<LmHeadLoss>(
            {
                .cases =
                    {
                        {.in = {{1, 1}, {1, 1}, Input::indices({1}, 1)}},
                        {.in = {{5, 7}, {9, 7}, Input::indices({5}, 9)}},
                        {.in = {{2, 6, 16}, {70, 16}, Input::indices({2, 6}, 70, true)}, .args = {.keep_logits = true}},
                        {.in = {{3, 8}, {1100, 8}, Input::indices({3}, 1100)}},
                        {.in = {{2050, 4}, {1500, 4}, Input::indices({2050}, 1500, true)},
                         .gradient = false},  // two chunks
                        {.in = {{2050, 4}, {1500, 4}, Input::indices({2050}, 1500, true)},
                         .args = {.keep_logits = true},
                         .gradient = false},
                        {.in = {{0, 4}, {6, 4}, Input::indices({0}, 6)}},
                    },
                .contracts = contract::lm_head_loss_contracts(),
                .condition = 16,
                .outliers = false,
            });

/// Several chunks of columns, kept or recomputed, against each other and against separate sums.
struct Run {
  float loss, count;
  std::vector<float> dh, dw;
};

std::vector<float> floats(const Tensor& t) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < t.size(); ++i) out.push_back(static_cast<float>(element(t, i)));
  return out;
}

/// Normal values that both types represent exactly.
void fill_bf16(const Tensor& t, std::uint64_t stream) {
  for (std::int64_t i = 0; i < t.size(); ++i) {
    set_element(t, i, rounded_to(DType::bf16, Rng{3, stream}.normal(static_cast<std::uint64_t>(i))));
  }
}

Run run(bool keep, int threads, std::int64_t rows, std::int64_t c, std::int64_t vocab, DType h_type = f32,
        DType w_type = f32) {
  Pool pool(threads);
  StepParams params;
  Stream s(pool, &params);
  OwnedTensor w(Spec{{vocab, c}, w_type}), dw(Spec{{vocab, c}, w_type});
  fill_bf16(w.tensor, 1);
  Graph g;
  const Var h = g.differentiable_input("h", {{rows, c}, h_type}), t = g.input("t", {{rows}, DType::i32});
  const auto [loss, count] = lm_head_loss(h, g.parameter("w", w.tensor, dw.tensor), t, {.keep_logits = keep});
  g.backward(loss);
  const Var dh = g.gradient(h);
  g.keep(loss), g.keep(count), g.keep(dh);
  Instance exe(g.finish());
  fill_bf16(exe.tensor(h), 2);
  for (std::int64_t i = 0; i < rows; ++i)
    exe.tensor(t).ptr<std::int32_t>()[i] = i % 5 == 4 ? -1 : static_cast<std::int32_t>(i * 7919 % vocab);
  exe.run(s);
  return {*exe.tensor(loss).ptr<float>(), *exe.tensor(count).ptr<float>(), floats(exe.tensor(dh)), floats(dw.tensor)};
}

TEST(LmHeadLoss, KeptAndRecomputedLogitsGiveTheSameBits) {
  const auto recomputed = run(false, 2, 2100, 8, 2500), kept = run(true, 2, 2100, 8, 2500),
             alone = run(false, 1, 2100, 8, 2500);
  for (const auto* other : {&kept, &alone}) {
    EXPECT_EQ(recomputed.loss, other->loss);
    EXPECT_EQ(recomputed.count, 2100 - 420);
    EXPECT_EQ(recomputed.dh, other->dh);
    EXPECT_EQ(recomputed.dw, other->dw);
  }
}

/// f32 master weights with bf16 activations: if bf16 represents the weights exactly, the bits equal those of bf16
/// weights.
TEST(LmHeadLoss, MasterWeightsUnderRoundedActivations) {
  const auto master = run(false, 2, 30, 16, 1200, DType::bf16, f32),
             rounded = run(false, 2, 30, 16, 1200, DType::bf16, DType::bf16);
  EXPECT_EQ(master.loss, rounded.loss);
  EXPECT_EQ(master.dh, rounded.dh);
  for (std::size_t i = 0; i < master.dw.size(); ++i)
    ASSERT_EQ(static_cast<float>(bf16(master.dw[i])), rounded.dw[i]) << i;
}

/// Rows of softmax minus one-hot sum to zero, so the sum of dW over the vocabulary is zero: skipping or repeating a
/// chunk would break that.
TEST(LmHeadLoss, GradientsOfAllChunksSumToZero) {
  constexpr std::int64_t c = 8, vocab = 2500;
  const auto r = run(false, 2, 2100, c, vocab);
  for (std::int64_t i = 0; i < c; ++i) {
    double sum = 0, size = 0;
    for (std::int64_t v = 0; v < vocab; ++v) {
      const double g = static_cast<double>(r.dw[static_cast<std::size_t>(v * c + i)]);
      sum += g;
      size += std::fabs(g);
    }
    EXPECT_LT(std::fabs(sum), 1e-5 * size) << i;
  }
}

TEST(LmHeadLoss, TargetBeyondTheVocabularyIsNan) {
  float h = 1, w[2] = {1, 2}, loss = 0, count = 0, chunk[2], stats[4];
  const std::int32_t target = 2;
  Pool pool(1);
  Stream s(pool);
  const Spec one{{1}, f32};
  LmHeadLoss::forward(s, Tensor(&loss, one), Tensor(&count, one), {}, {}, View(&h, {{1, 1}, f32}),
                      View(w, {{2, 1}, f32}), View(&target, {{1}, DType::i32}), Tensor(chunk, {{1, 2}, f32}),
                      Tensor(stats, {{4, 1}, f32}), {});
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace hpcdl
