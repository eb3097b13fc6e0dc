#include "hpcdl/ops/sgd/sgd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/core/element.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl {
namespace {

/// Parameters of awkward sizes, their state, and copies of both in double.
struct Model {
  struct One {
    OwnedTensor value, gradient, m, copy;
    std::vector<double> p, buffer;
    bool decay;
  };
  std::vector<One> tensors;
  Sgd::Args args;
  StepParams params;
  std::unique_ptr<Instance> exe;

  Model(DType value, DType gradient, Sgd::Args a) : args(a) {
    int i = 0;
    for (std::int64_t n : {1, 15, 8192, 0, 20011, 8193}) {
      const Shape shape{n};
      One o{OwnedTensor({shape, value}),
            OwnedTensor({shape, gradient}),
            a.momentum != 0 ? OwnedTensor({shape, DType::f32}) : OwnedTensor(),
            i % 2 ? OwnedTensor({shape, DType::bf16}) : OwnedTensor(),
            {},
            {},
            i % 3 != 0};
      for (std::int64_t k = 0; k < n; ++k) {
        set_element(o.value.tensor, k, Rng{1, static_cast<std::uint64_t>(i)}.normal(static_cast<std::uint64_t>(k)));
        o.p.push_back(element(o.value.tensor, k));
      }
      o.buffer.resize(static_cast<std::size_t>(n));
      tensors.push_back(std::move(o));
      ++i;
    }
    Graph g;
    std::vector<SgdTensor<Var>> list;
    for (auto& o : tensors) {
      const auto leaf = [&](const char* what, const Tensor& t) {
        return t ? g.constant(what + std::to_string(list.size()), t) : Var();
      };
      list.push_back({leaf("p", o.value.tensor), leaf("g", o.gradient.tensor),
                      a.momentum != 0 ? leaf("m", o.m.tensor) : Var(), leaf("c", o.copy.tensor), o.decay});
    }
    record_sgd(g, list, args);
    exe = std::make_unique<Instance>(g.finish());
  }

  void run(int threads, int step) {
    params.step = step;
    params.lr = 0.1f / static_cast<float>(step + 1);
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

  /// torch.optim.SGD in double; the buffer does not exist before the first step.
  void reference() {
    if (params.skip) return;
    const double lr = static_cast<double>(params.lr), momentum = static_cast<double>(args.momentum);
    for (auto& o : tensors) {
      for (std::size_t k = 0; k < o.p.size(); ++k) {
        double g = element(o.gradient.tensor, static_cast<std::int64_t>(k)) *
                   static_cast<double>(params.grad_scale * params.clip_factor);
        if (o.decay) g += static_cast<double>(args.weight_decay) * o.p[k];
        if (momentum != 0) {
          o.buffer[k] = params.step == 0 ? g : momentum * o.buffer[k] + (1 - static_cast<double>(args.dampening)) * g;
          g = args.nesterov ? g + momentum * o.buffer[k] : o.buffer[k];
        }
        o.p[k] -= lr * g;
      }
    }
  }
};

using Parameters = std::tuple<simd::IsaKind, DType, DType, Sgd::Args>;
class SgdTest : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    if (!simd::set_active_isa(std::get<0>(GetParam()))) GTEST_SKIP() << "this CPU lacks this instruction set";
  }
  void TearDown() override { simd::set_active_isa(simd::best_isa()); }
  Model model() const { return Model(std::get<1>(GetParam()), std::get<2>(GetParam()), std::get<3>(GetParam())); }
};

TEST_P(SgdTest, FollowsTheReference) {
  Model m = model();
  constexpr int kSteps = 5;
  // A step adds a few float rounding errors of values of magnitude <= 5; bf16 weights are rounded once per step.
  const double ulp = std::get<1>(GetParam()) == DType::bf16 ? 0x1p-8 : 0x1p-24, tol = kSteps * 4 * 5 * ulp;
  // The decay carries the rounding error of a bf16 weight into the gradient, and the momentum accumulates it.
  const double carried = static_cast<double>(m.args.weight_decay) * tol * 10 + 1e-6;
  for (int step = 0; step < kSteps; ++step) {
    m.run(2, step);
    m.reference();
  }
  for (std::size_t i = 0; i < m.tensors.size(); ++i) {
    const auto& o = m.tensors[i];
    for (std::size_t k = 0; k < o.p.size(); ++k) {
      const auto at = static_cast<std::int64_t>(k);
      ASSERT_NEAR(element(o.value.tensor, at), o.p[k], tol) << i << " " << k;
      if (m.args.momentum != 0) {
        ASSERT_NEAR(element(o.m.tensor, at), o.buffer[k], carried);
      }
      if (o.copy.tensor) {
        ASSERT_EQ(o.copy.tensor.ptr<bf16>()[k].bits, bf16(static_cast<float>(element(o.value.tensor, at))).bits);
      }
    }
  }
}

TEST_P(SgdTest, SameBitsWhateverTheThreads) {
  Model one = model(), three = model();
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
    All, SgdTest,
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
