#include "hpcdl/ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/testing/optimizer.h"

namespace hpcdl {
namespace {

struct Model : testing::OptimizerModel {
  AdamW::Args args{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};

  Model(DType value, DType gradient) : OptimizerModel(value, gradient, 2) {
    Graph g;
    std::vector<AdamWTensor<Var>> list;
    for (auto& o : tensors)
      list.push_back({g.constant("p", o.value.tensor), g.constant("g", o.gradient.tensor), g.constant("m", o.state[0].tensor), g.constant("v", o.state[1].tensor),
                      o.copy.tensor.dtype() == DType::bf16 ? g.constant("c", o.copy.tensor) : Var(), o.decay});
    record_adamw(g, list, args);
    exe = std::make_unique<Executable>(g.finish());
  }

  /// torch.optim.AdamW, in double.
  void reference() {
    if (params.skip) return;
    const double t = static_cast<double>(params.step + 1), lr = static_cast<double>(params.lr), b1 = static_cast<double>(args.beta1),
                 b2 = static_cast<double>(args.beta2);
    for (auto& o : tensors) {
      auto &m = o.wanted[0], &v = o.wanted[1];
      for (std::size_t k = 0; k < o.p.size(); ++k) {
        const double g = gradient(o, k);
        if (o.decay) o.p[k] *= 1 - lr * static_cast<double>(args.weight_decay);
        m[k] = b1 * m[k] + (1 - b1) * g;
        v[k] = b2 * v[k] + (1 - b2) * g * g;
        o.p[k] -= lr / (1 - std::pow(b1, t)) * m[k] / (std::sqrt(v[k]) / std::sqrt(1 - std::pow(b2, t)) + static_cast<double>(args.eps));
      }
    }
  }
};

class AdamWTest : public ::testing::TestWithParam<std::tuple<simd::IsaKind, DType, DType>> {
 protected:
  void SetUp() override {
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks it";
  }
  void TearDown() override { simd::set_active_isa(simd::best_isa()); }
};

TEST_P(AdamWTest, FollowsTheReference) {
  Model model(std::get<1>(GetParam()), std::get<2>(GetParam()));
  constexpr int kSteps = 5;
  // A step adds a few float roundings of values of magnitude <= 5; bf16 weights are rounded once per step.
  const double ulp = std::get<1>(GetParam()) == DType::bf16 ? 0x1p-8 : 0x1p-24, tol = kSteps * 4 * 5 * ulp;
  for (int step = 0; step < kSteps; ++step) {
    model.run(2, step, 0.01f);
    model.reference();
  }
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto& o = model.tensors[i];
    for (std::size_t k = 0; k < o.p.size(); ++k) {
      const auto at = static_cast<std::int64_t>(k);
      ASSERT_NEAR(testing::element(o.value.tensor, at), o.p[k], tol) << i << " " << k;
      ASSERT_NEAR(testing::element(o.state[0].tensor, at), o.wanted[0][k], 1e-6);
      ASSERT_NEAR(testing::element(o.state[1].tensor, at), o.wanted[1][k], 1e-6);
      if (o.copy.tensor) {
        ASSERT_EQ(o.copy.tensor.ptr<bf16>()[k].bits, bf16(static_cast<float>(testing::element(o.value.tensor, at))).bits);
      }
    }
  }
}

TEST_P(AdamWTest, SameBitsWhateverTheThreads) {
  Model one(std::get<1>(GetParam()), std::get<2>(GetParam())), three(std::get<1>(GetParam()), std::get<2>(GetParam()));
  for (int step = 0; step < 3; ++step) {
    one.run(1, step, 0.01f);
    three.run(3, step, 0.01f);
  }
  EXPECT_TRUE(one.same_values(three));
}

INSTANTIATE_TEST_SUITE_P(All, AdamWTest,
                         ::testing::Combine(::testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2, simd::IsaKind::avx512),
                                            ::testing::Values(DType::f32, DType::bf16), ::testing::Values(DType::f32, DType::bf16)));

TEST(AdamW, RejectsStateOfAnotherShape) {
  Graph g;
  const Var p = g.input("p", {{4}, DType::f32}), small = g.input("m", {{3}, DType::f32});
  EXPECT_THROW(record_adamw(g, std::vector<AdamWTensor<Var>>{{p, p, small, p}}, {}), Error);
}

}  // namespace
}  // namespace hpcdl
