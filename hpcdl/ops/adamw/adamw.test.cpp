#include "hpcdl/ops/adamw/adamw.spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

/// Parameters of awkward sizes, their state, and copies of both in double.
struct Model {
  struct One {
    OwnedTensor value, gradient, m, v, copy;
    std::vector<double> p, rm, rv;
    bool decay;
  };
  std::vector<One> tensors;
  AdamW::Args args{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8f, .weight_decay = 0.1f};
  StepParams params;
  std::unique_ptr<Instance> exe;

  Model(DType value, DType gradient) {
    int i = 0;
    for (std::int64_t n : {1, 15, 8192, 0, 20011, 8193}) {
      const Shape shape{n};
      One o{OwnedTensor({shape, value}),
            OwnedTensor({shape, gradient}),
            OwnedTensor({shape, DType::f32}),
            OwnedTensor({shape, DType::f32}),
            i % 2 ? OwnedTensor({shape, DType::bf16}) : OwnedTensor(),
            {},
            {},
            {},
            i % 3 != 0};
      for (std::int64_t k = 0; k < n; ++k) {
        set_element(o.value.tensor, k, Rng{1, static_cast<std::uint64_t>(i)}.normal(static_cast<std::uint64_t>(k)));
        o.p.push_back(element(o.value.tensor, k));
      }
      o.rm.resize(static_cast<std::size_t>(n));
      o.rv.resize(static_cast<std::size_t>(n));
      tensors.push_back(std::move(o));
      ++i;
    }
    Graph g;
    std::vector<AdamWTensor<Var>> list;
    for (auto& o : tensors) {
      const auto leaf = [&](const char* what, const Tensor& t) {
        return t ? g.constant(fmt::format("{}.{}", what, list.size()), t) : Var();
      };
      list.push_back({leaf("p", o.value.tensor), leaf("g", o.gradient.tensor), leaf("m", o.m.tensor),
                      leaf("v", o.v.tensor), leaf("c", o.copy.tensor), o.decay});
    }
    record_adamw(g, list, args);
    exe = std::make_unique<Instance>(g.finish());
  }

  void run(int threads, int step) {
    params.step = step;
    params.lr = 0.01f / static_cast<float>(step + 1);
    params.grad_scale = 0.5f;
    params.clip_factor = step == 1 ? 0.25f : 1;
    params.skip = step == 2;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::int64_t k = 0; k < tensors[i].gradient.tensor.size(); ++k)
        set_element(tensors[i].gradient.tensor, k,
                    Rng{static_cast<std::uint64_t>(step + 10), i}.normal(static_cast<std::uint64_t>(k)));
    Pool pool(threads);
    Stream s(pool, &params);
    exe->run(s);
  }

  /// The same step in double.
  void reference() {
    if (params.skip) return;
    for (auto& o : tensors) {
      contract::AdamWCall call{args, params.lr, params.grad_scale * params.clip_factor, params.step};
      if (!o.decay) call.args.weight_decay = 0;
      const Spec& f = o.m.tensor.spec();
      const contract::Values in[] = {{f, o.p}, contract::values_of(o.gradient.tensor), {f, o.rm}, {f, o.rv}};
      contract::Expected out[] = {contract::Expected(f), contract::Expected(f), contract::Expected(f)};
      contract::adamw_reference(out, in, call);
      o.p = out[0].value, o.rm = out[1].value, o.rv = out[2].value;
    }
  }
};

class AdamWTest : public ::testing::TestWithParam<std::tuple<simd::IsaKind, DType, DType>> {
 protected:
  void SetUp() override {
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks this instruction set";
  }
  void TearDown() override { simd::set_active_isa(simd::best_isa()); }
};

TEST_P(AdamWTest, FollowsTheReference) {
  Model model(std::get<1>(GetParam()), std::get<2>(GetParam()));
  constexpr int kSteps = 5;
  // A step adds a few float rounding errors of values of magnitude <= 5; bf16 weights are rounded once per step.
  const double ulp = std::get<1>(GetParam()) == DType::bf16 ? 0x1p-8 : 0x1p-24, tol = kSteps * 4 * 5 * ulp;
  for (int step = 0; step < kSteps; ++step) {
    model.run(2, step);
    model.reference();
  }
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto& o = model.tensors[i];
    for (std::size_t k = 0; k < o.p.size(); ++k) {
      const auto at = static_cast<std::int64_t>(k);
      ASSERT_NEAR(element(o.value.tensor, at), o.p[k], tol) << i << " " << k;
      ASSERT_NEAR(element(o.m.tensor, at), o.rm[k], 1e-6);
      ASSERT_NEAR(element(o.v.tensor, at), o.rv[k], 1e-6);
      if (o.copy.tensor) {
        ASSERT_EQ(o.copy.tensor.ptr<bf16>()[k].bits, bf16(static_cast<float>(element(o.value.tensor, at))).bits);
      }
    }
  }
}

TEST_P(AdamWTest, SameBitsWhateverTheThreads) {
  Model one(std::get<1>(GetParam()), std::get<2>(GetParam())), three(std::get<1>(GetParam()), std::get<2>(GetParam()));
  for (int step = 0; step < 3; ++step) {
    one.run(1, step);
    three.run(3, step);
  }
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    const auto &a = one.tensors[i].value.tensor, &b = three.tensors[i].value.tensor;
    EXPECT_TRUE(a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AdamWTest,
    ::testing::Combine(::testing::Values(simd::IsaKind::scalar, simd::IsaKind::avx2, simd::IsaKind::avx512),
                       ::testing::Values(DType::f32, DType::bf16), ::testing::Values(DType::f32, DType::bf16)));

/// The mean of equal gradients is that gradient for every beta, so each step moves by lr.
TEST(AdamW, BetasMayBeNearerTo1ThanAnF32Holds) {
  testing::for_each_isa([] {
    float p = 1, g = 0.5f, m = 0, v = 0;
    const Spec one{{1}, DType::f32};
    const Grad tensors[AdamW::kOperands] = {{Tensor(&p, one), Write::overwrite},
                                            {Tensor(&g, one), Write::overwrite},
                                            {Tensor(&m, one), Write::overwrite},
                                            {Tensor(&v, one), Write::overwrite},
                                            {}};
    const std::uint8_t decays = 0;
    const AdamW::Args args{.beta1 = 1 - 1e-11, .beta2 = 1 - 1e-12};
    Pool pool(1);
    for (int step = 0; step < 4; ++step) {
      StepParams params;
      params.step = step, params.lr = 0.125f;
      simd::with_isa([&](auto isa) { cpu::adamw(isa, pool, tensors, &decays, 1, AdamW::step(args, params)); });
      EXPECT_NEAR(p, 1 - 0.125f * static_cast<float>(step + 1), 1e-4) << step;
    }
  });
}

TEST(AdamW, RejectsStateOfAnotherShape) {
  Graph g;
  const Var p = g.input("p", {{4}, DType::f32}), small = g.input("m", {{3}, DType::f32});
  EXPECT_THROW(record_adamw(g, std::vector<AdamWTensor<Var>>{{p, p, small, p}}, {}), Error);
}

/// Operands were once counted in 16 bits.
TEST(adamw, one_record_takes_any_number_of_tensors) {
  constexpr int kTensors = 20000;
  Graph g;
  const auto leaf = [&](const char* what, int i) {
    return g.constant(fmt::format("{}.{}", what, i), Tensor(nullptr, Spec{{1}, DType::f32}));
  };
  std::vector<AdamWTensor<Var>> tensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.push_back({.value = leaf("w", i), .gradient = leaf("dw", i), .m = leaf("m", i), .v = leaf("v", i)});
  record_adamw(g, tensors, {});
  EXPECT_EQ(g.program().records.back().operand_count, 5u * kTensors);
}

}  // namespace
}  // namespace hpcdl
