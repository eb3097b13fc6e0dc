#include "hpcdl/ops/cross_entropy/smooth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.spec.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Input;
using testing::Values;

const auto f32 = DType::f32;

Input weights(Shape rows) { return Input(rows).as(f32).filled(testing::Fill::positive).fixed(); }

const auto spec = testing::op<SmoothCrossEntropy>({
    .cases =
        {
            {.in = {{1, 1}, Input::indices({1}, 1), Input::none()}, .args = {0.1f}},
            {.in = {{3, 7}, Input::indices({3}, 7), weights({3})}},
            {.in = {{3, 10}, Input::indices({3}, 10), weights({3})}, .args = {1.0f}},
            {.in = {{2, 9, 65}, Input::indices({2, 9}, 65, true), weights({2, 9})}, .args = {0.1f}},
            {.in = {{33, 1023}, Input::indices({33}, 1023, true), Input::none()}, .args = {0.2f}},
            // A GPU's teams: part of a warp, a warp, blocks of 64, 128 and 512 threads; rows with and without whole
            // 16-byte packs.
            {.in = {{40, 24}, Input::indices({40}, 24, true), weights({40})}, .args = {0.3f}},
            {.in = {{9, 1000}, Input::indices({9}, 1000), weights({9})}, .args = {0.1f}},
            {.in = {{5, 2008}, Input::indices({5}, 2008), Input::none()}, .args = {0.1f}, .gradient = false},
            {.in = {{3, 8001}, Input::indices({3}, 8001), Input::none()}, .args = {0.1f}, .gradient = false},
            {.in = {{3, 16400}, Input::indices({3}, 16400), Input::none()}, .args = {0.1f}, .gradient = false},
            {.in = {{5, 12289}, Input::indices({5}, 12289), weights({5})}, .args = {0.1f}, .gradient = false},
            {.in = {{0, 8}, Input::indices({0}, 8), weights({0})}, .args = {0.1f}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const SmoothCrossEntropy::Args& a) {
          const auto n = in[0].spec[-1];
          const double smoothing = static_cast<double>(a.label_smoothing);
          for (std::int64_t r = 0; r < in[1].size(); ++r) {
            const auto t = static_cast<std::int64_t>(in[1][r]);
            if (t < 0) continue;
            double mean = 0;
            for (std::int64_t c = 0; c < n; ++c) mean += in[0][r * n + c] / static_cast<double>(n);
            const double w = in[2].size() ? in[2][r] : 1;
            out[2][r] = contract::log_sum_exp(in[0], r);
            out[0][0] += w * (out[2][r] - (1 - smoothing) * in[0][r * n + t] - smoothing * mean);
            out[1][0] += w;
          }
        },
    .reduction = [](std::span<const Spec> in, const SmoothCrossEntropy::Args&) { return in[0].size(); },
});

/// Two rows by the definition of torch.nn.functional.cross_entropy(..., label_smoothing=0.3, reduction="sum"):
/// -(0.8 log p0 + 0.1 log p1 + 0.1 log p2), and the same with the weight on the third.
TEST(SmoothCrossEntropy, SpreadsTheTarget) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  Graph g({.eager = &s});
  const Var x = g.input("x", {{2, 3}, f32}), t = g.input("t", {{2}, DType::i32});
  const float logits[] = {1, 2, 4, 0, -1, 3};
  std::memcpy(g.eager_tensor(x).data(), logits, sizeof logits);
  g.eager_tensor(t).ptr<std::int32_t>()[0] = 0;
  g.eager_tensor(t).ptr<std::int32_t>()[1] = 2;
  const auto [loss, count] = cross_entropy(x, t, {.label_smoothing = 0.3f});
  double want = 0;
  for (int r = 0; r < 2; ++r) {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += std::exp(static_cast<double>(logits[3 * r + c]));
    for (int c = 0; c < 3; ++c)
      want -= (0.1 + (c == 2 * r ? 0.7 : 0.0)) * (static_cast<double>(logits[3 * r + c]) - std::log(sum));
  }
  EXPECT_NEAR(static_cast<double>(*g.eager_tensor(loss).ptr<float>()), want, 1e-5);
  EXPECT_EQ(*g.eager_tensor(count).ptr<float>(), 2);
}

/// Mixup: the counts of both halves sum to the number of rows, and with equal targets the halves sum to the plain loss.
TEST(SmoothCrossEntropy, MixesTwoTargets) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  Graph g({.eager = &s});
  const Var x = g.input("x", {{4, 5}, f32}), t = g.input("t", {{4}, DType::i32}), a = g.input("a", {{4}, f32}),
            b = g.input("b", {{4}, f32});
  for (int i = 0; i < 20; ++i) g.eager_tensor(x).ptr<float>()[i] = static_cast<float>(i * 7 % 11);
  for (int r = 0; r < 4; ++r) {
    g.eager_tensor(t).ptr<std::int32_t>()[r] = r;
    g.eager_tensor(a).ptr<float>()[r] = 0.25f * static_cast<float>(r);
    g.eager_tensor(b).ptr<float>()[r] = 1 - 0.25f * static_cast<float>(r);
  }
  const auto [whole, rows] = cross_entropy(x, t);
  const auto [first, weight] = cross_entropy(x, t, {}, a);
  const auto [second, rest] = cross_entropy(x, t, {}, b);
  const auto value = [&](const Var& v) { return *g.eager_tensor(v).ptr<float>(); };
  EXPECT_EQ(value(weight) + value(rest), value(rows));
  EXPECT_NEAR(value(first) + value(second), value(whole), 1e-5f * value(whole));
}

TEST(SmoothCrossEntropy, WithoutSmoothingAndWeightsItIsThePlainOp) {
  Graph g;
  const Var x = g.input("x", {{2, 3}, f32}), t = g.input("t", {{2}, DType::i32});
  cross_entropy(x, t, {});
  EXPECT_EQ(g.program().records.back().op, CrossEntropy::name);
  cross_entropy(x, t, {.label_smoothing = 0.1f});
  EXPECT_EQ(g.program().records.back().op, SmoothCrossEntropy::name);
  EXPECT_THROW(cross_entropy(x, t, {.label_smoothing = 1.5f}), Error);
  EXPECT_THROW(cross_entropy(x, t, {}, g.input("w", {{3}, f32})), Error);
}

}  // namespace
}  // namespace hpcdl
