#include "hpcdl/ops/grad_norm/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl {
namespace {

const std::vector<std::int64_t> kSizes{1, 7, 0, 8192, 50001, 3, 20000};

struct Gradients {
  std::vector<OwnedTensor> memory;
  double squares = 0;

  explicit Gradients(DType dtype) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      memory.emplace_back(Spec{{kSizes[i]}, i % 3 == 2 ? DType::f32 : dtype});
      const Rng rng{i, 9};
      for (std::int64_t k = 0; k < kSizes[i]; ++k)
        set(i, k, static_cast<float>(rng.normal(static_cast<std::uint64_t>(k))));
    }
  }
  void set(std::size_t i, std::int64_t k, float v) {
    const auto& t = memory[i].tensor;
    if (t.dtype() == DType::bf16) t.ptr<bf16>()[k] = bf16(v), v = t.ptr<bf16>()[k];
    else t.ptr<float>()[k] = v;
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  StepParams run(int threads, GradNorm::Args args, float grad_scale = 1) {
    Pool pool(threads);
    StepParams params;
    params.grad_scale = grad_scale;
    params.skip = 7;
    Stream s(pool, &params);
    Graph g;
    std::vector<Var> vars;
    for (const auto& m : memory) vars.push_back(g.constant("g" + std::to_string(vars.size()), m.tensor));
    record_grad_norm(g, vars, args);
    Instance(g.finish()).run(s);
    return params;
  }
};

class GradNormTest : public ::testing::TestWithParam<std::tuple<simd::IsaKind, DType>> {
 protected:
  void SetUp() override {
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks this instruction set";
  }
  void TearDown() override { simd::set_active_isa(simd::best_isa()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(GradNormTest, NormAndClipFactor) {
  Gradients g(dtype());
  const double want = std::sqrt(g.squares) * 0.25;
  const auto p = g.run(2, {.max_norm = 3}, 0.25f);
  // One lane sums at most 8192 squares in float; the blocks are summed in double.
  EXPECT_NEAR(static_cast<double>(p.grad_norm), want, want * std::sqrt(8192.0) * 0x1p-24);
  EXPECT_FLOAT_EQ(p.clip_factor, 3 / (p.grad_norm + 1e-6f));
  EXPECT_EQ(p.skip, 0);
  EXPECT_EQ(g.run(2, {.max_norm = 1e6f}).clip_factor, 1);
  EXPECT_EQ(g.run(2, {.max_norm = 0}).clip_factor, 1);
}

TEST_P(GradNormTest, SameBitsWhateverTheThreads) {
  Gradients g(dtype());
  const float one = g.run(1, {}).grad_norm;
  for (int threads : {2, 3, 5}) EXPECT_EQ(g.run(threads, {}).grad_norm, one);
}

TEST_P(GradNormTest, NonFiniteGradientsSkipTheStep) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Gradients g(dtype());
    g.set(4, 50000, bad);
    EXPECT_EQ(g.run(2, {}).skip, 1);
    EXPECT_EQ(g.run(2, {.skip_nonfinite = false}).skip, 7) << "left alone";
  }
}

INSTANTIATE_TEST_SUITE_P(All, GradNormTest,
                         ::testing::Combine(::testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2,
                                                              simd::IsaKind::avx512),
                                            ::testing::Values(DType::f32, DType::bf16)));

TEST(GradNorm, NoGradients) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  Graph g;
  record_grad_norm(g, std::vector<Var>{}, {});
  Instance(g.finish()).run(s);
  EXPECT_EQ(params.grad_norm, 0);
  EXPECT_EQ(params.clip_factor, 1);
}

TEST(GradNorm, RejectsIntegers) {
  Graph g;
  EXPECT_THROW(record_grad_norm(g, std::vector<Var>{g.input("ids", {{4}, DType::i32})}, {}), Error);
}

}  // namespace
}  // namespace hpcdl
