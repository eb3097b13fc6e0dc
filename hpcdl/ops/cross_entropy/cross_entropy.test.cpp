#include "hpcdl/ops/cross_entropy/cross_entropy.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

const auto f32 = DType::f32;

const auto spec = testing::op<CrossEntropy>({
    .cases =
        {
            {.in = {{1, 1}, Input::indices({1}, 1)}},
            {.in = {{3, 7}, Input::indices({3}, 7)}},
            {.in = {{2, 9, 65}, Input::indices({2, 9}, 65, true)}},
            {.in = {{33, 1023}, Input::indices({33}, 1023, true)}},
            {.in = {{5, 12289}, Input::indices({5}, 12289)}},
            {.in = {{3, 50257}, Input::indices({3}, 50257)}, .gradient = false},
            {.in = {{0, 8}, Input::indices({0}, 8)}},
        },
    .contracts = contract::cross_entropy_contracts(),
});

struct OneRow {
  float loss = 0, count = 0, lse = 0, row = 0;
  OneRow(std::vector<float> x, std::int32_t target) {
    Pool pool(1);
    Stream s(pool);
    const Spec one{{1}, f32};
    CrossEntropy::forward(s, Tensor(&loss, one), Tensor(&count, one), Tensor(&lse, one),
                          View(x.data(), {{1, static_cast<std::int64_t>(x.size())}, f32}),
                          View(&target, {{1}, DType::i32}), Tensor(&row, one), {});
  }
};

TEST(CrossEntropy, OddTargetsAndLogits) {
  EXPECT_TRUE(std::isnan(OneRow({1, 2, 3}, 3).loss)) << "target beyond the vocabulary";
  EXPECT_EQ(OneRow({1, 2, 3}, -100).count, 0);
  EXPECT_EQ(OneRow({1, NAN, 3}, -1).loss, 0);
  EXPECT_TRUE(std::isnan(OneRow({1, NAN, 3}, 0).loss));
  EXPECT_TRUE(std::isnan(OneRow({NAN, NAN, NAN}, 0).loss));
  EXPECT_FLOAT_EQ(OneRow({0, -INFINITY, 0}, 0).loss, std::log(2.0f)) << "a masked column";
  EXPECT_FLOAT_EQ(OneRow({1000, 1000, -1000}, 1).loss, std::log(2.0f));
  std::vector<float> masked(9000, -INFINITY);  // the first blocks contain only -infinity
  masked[8999] = 2;
  EXPECT_FLOAT_EQ(OneRow(masked, 8999).loss, 0);
}

/// A gradient too large for the cache is written with non-temporal stores: its bits equal, row by row, those of a small
/// one.
TEST(CrossEntropy, LargeGradientsHaveTheBitsOfSmallOnes) {
  constexpr std::int64_t rows = 131, n = 50257;
  std::vector<float> x(rows * n), dx(rows * n, NAN), row(n), lse(rows, 12.0f);
  std::vector<std::int32_t> t(rows);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 100;
  for (std::size_t r = 0; r < rows; ++r) t[r] = static_cast<std::int32_t>(r * 383);
  Pool pool(2);
  Stream s(pool);
  const float dloss = 0.5f;
  const auto backward = [&](float* out, std::int64_t first, std::int64_t count) {
    const auto f = static_cast<std::size_t>(first);
    CrossEntropy::backward(s, Grad(Tensor(out, {{count, n}, f32}), Write::overwrite),
                           View(&x[f * n], {{count, n}, f32}), View(&t[f], {{count}, DType::i32}),
                           View(&lse[f], {{count}, f32}), View(&dloss, {{1}, f32}), {});
  };
  backward(dx.data(), 0, rows);
  for (std::int64_t r : {0, 1, 64, 65, 130}) {
    backward(row.data(), r, 1);
    EXPECT_EQ(std::memcmp(row.data(), &dx[static_cast<std::size_t>(r * n)], n * sizeof(float)), 0) << r;
  }
}

/// The recorded step: sum loss, count, and a gradient with respect to logits that is written to the requested memory.
TEST(CrossEntropy, RecordsLossCountAndGradient) {
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  Graph g;
  const Var x = g.differentiable_input("x", {{2, 3}, f32}), t = g.input("t", {{2}, DType::i32});
  const auto [loss, count] = cross_entropy(x, t);
  g.backward(loss);
  g.keep(loss), g.keep(count), g.keep(g.gradient(x));
  const Var dx = g.gradient(x);
  Instance exe(g.finish());
  for (int i = 0; i < 6; ++i) exe.tensor(x).ptr<float>()[i] = 0;
  exe.tensor(t).ptr<std::int32_t>()[0] = 2;
  exe.tensor(t).ptr<std::int32_t>()[1] = -1;
  exe.run(s);
  EXPECT_FLOAT_EQ(*exe.tensor(loss).ptr<float>(), std::log(3.0f));
  EXPECT_EQ(*exe.tensor(count).ptr<float>(), 1);
  const float want[] = {1.0f / 3, 1.0f / 3, -2.0f / 3, 0, 0, 0};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(exe.tensor(dx).ptr<float>()[i], want[i], 1e-6f);
}

}  // namespace
}  // namespace hpcdl
