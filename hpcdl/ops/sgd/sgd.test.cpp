#include "hpcdl/ops/sgd/sgd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/testing/optimizer.h"

namespace hpcdl {
namespace {

struct Model : testing::OptimizerModel {
  Sgd::Args args;

  Model(DType value, DType gradient, Sgd::Args a) : OptimizerModel(value, gradient, a.momentum != 0 ? 1 : 0), args(a) {
    Graph g;
    std::vector<SgdTensor<Var>> list;
    for (auto& o : tensors)
      list.push_back({g.constant("p", o.value.tensor), g.constant("g", o.gradient.tensor), a.momentum != 0 ? g.constant("m", o.state[0].tensor) : Var(),
                      o.copy.tensor.dtype() != DType::none ? g.constant("c", o.copy.tensor) : Var(), o.decay});
    record_sgd(g, list, args);
    exe = std::make_unique<Executable>(g.finish());
  }

  /// torch.optim.SGD, in double; the buffer does not exist before the first step.
  void reference() {
    if (params.skip) return;
    const double lr = static_cast<double>(params.lr), momentum = static_cast<double>(args.momentum);
    for (auto& o : tensors)
      for (std::size_t k = 0; k < o.p.size(); ++k) {
        double g = gradient(o, k);
        if (o.decay) g += static_cast<double>(args.weight_decay) * o.p[k];
        if (momentum != 0) {
          auto& buffer = o.wanted[0][k];
          buffer = params.step == 0 ? g : momentum * buffer + (1 - static_cast<double>(args.dampening)) * g;
          g = args.nesterov ? g + momentum * buffer : buffer;
        }
        o.p[k] -= lr * g;
      }
  }
};

using Parameters = std::tuple<simd::IsaKind, DType, DType, Sgd::Args>;
class SgdTest : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks it";
  }
  void TearDown() override { simd::set_active_isa(simd::best_isa()); }
  Model model() const { return Model(std::get<1>(GetParam()), std::get<2>(GetParam()), std::get<3>(GetParam())); }
};

TEST_P(SgdTest, FollowsTheReference) {
  Model m = model();
  constexpr int kSteps = 5;
  // A step adds a few float roundings of values of magnitude <= 5; bf16 weights are rounded once per step.
  const double ulp = std::get<1>(GetParam()) == DType::bf16 ? 0x1p-8 : 0x1p-24, tol = kSteps * 4 * 5 * ulp;
  // The decay carries what a bf16 weight lost into the gradient, and the momentum sums it up.
  const double carried = static_cast<double>(m.args.weight_decay) * tol * 10 + 1e-6;
  for (int step = 0; step < kSteps; ++step) {
    m.run(2, step, 0.1f);
    m.reference();
  }
  for (std::size_t i = 0; i < m.tensors.size(); ++i) {
    const auto& o = m.tensors[i];
    for (std::size_t k = 0; k < o.p.size(); ++k) {
      const auto at = static_cast<std::int64_t>(k);
      ASSERT_NEAR(testing::element(o.value.tensor, at), o.p[k], tol) << i << " " << k;
      if (m.args.momentum != 0) {
        ASSERT_NEAR(testing::element(o.state[0].tensor, at), o.wanted[0][k], carried);
      }
      if (o.copy.tensor) {
        ASSERT_EQ(o.copy.tensor.ptr<bf16>()[k].bits, bf16(static_cast<float>(testing::element(o.value.tensor, at))).bits);
      }
    }
  }
}

TEST_P(SgdTest, SameBitsWhateverTheThreads) {
  Model one = model(), three = model();
  for (int step = 0; step < 3; ++step) {
    one.run(1, step, 0.1f);
    three.run(3, step, 0.1f);
  }
  EXPECT_TRUE(one.same_values(three));
}

INSTANTIATE_TEST_SUITE_P(All, SgdTest,
                         ::testing::Combine(::testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2, simd::IsaKind::avx512),
                                            ::testing::Values(DType::f32, DType::bf16), ::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Sgd::Args{}, Sgd::Args{.weight_decay = 0.01f}, Sgd::Args{.momentum = 0.9f},
                                                              Sgd::Args{.momentum = 0.9f, .dampening = 0.25f, .weight_decay = 0.01f},
                                                              Sgd::Args{.momentum = 0.9f, .nesterov = true, .weight_decay = 5e-4f})));

TEST(Sgd, RejectsWhatTorchRejects) {
  Graph g;
  const Var p = g.input("p", {{4}, DType::f32}), small = g.input("m", {{3}, DType::f32});
  const auto record = [&](SgdTensor<Var> t, Sgd::Args a) { record_sgd(g, std::vector<SgdTensor<Var>>{t}, a); };
  EXPECT_THROW(record({p, p, small}, {.momentum = 0.9f}), Error);
  EXPECT_THROW(record({p, p}, {.momentum = 0.9f}), Error) << "no memory for the momentum";
  EXPECT_THROW(record({p, p, p}, {}), Error) << "a momentum that nobody asked for";
  EXPECT_THROW(record({p, p}, {.nesterov = true}), Error);
  EXPECT_THROW(record({p, p, p}, {.momentum = 0.9f, .dampening = 0.1f, .nesterov = true}), Error);
}

}  // namespace
}  // namespace hpcdl
