#include "hpcdl/ops/adamw8/adamw8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "hpcdl/core/element.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/adamw/adamw.spec.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kBlock = AdamW8::kBlock;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

double of_code(const Tensor& codes, const Tensor& scales, std::int64_t i) {
  const double c = element(codes, i), scale = element(scales, i / kBlock);
  return codes.dtype() == DType::i8 ? scale * std::copysign(c / 127 * c / 127, c) : scale * std::pow(c / 255, 4);
}

/// On the scale of roots, where codes are whole numbers, a code is at most half from the moment, and rounding errors. A v
/// above 0 has no code below 1.
void expect_code(double code, double x, double scale, bool first) {
  const double most = first ? 127 : 255, exact = scale == 0 ? 0 : std::fabs(x) / scale,
               root = first ? std::sqrt(exact) : std::sqrt(std::sqrt(exact));
  const bool raised = !first && x > 0 && root * most < 0.5;
  ASSERT_LE(std::fabs(root * most - std::fabs(code)), raised ? 1 : 0.5 + 1e-4 * most);
  ASSERT_TRUE(!raised || code == 1);
  ASSERT_TRUE(code == 0 || (code < 0) == (x < 0));
}

struct One {
  OwnedTensor value, gradient, m, v, copy, m_scale, v_scale;
  bool decay = true;

  One(std::int64_t n, DType value_type, DType gradient_type, DType copy_type = DType::none)
      : value({{n}, value_type}),
        gradient({{n}, gradient_type}),
        m({{n}, DType::i8}),
        v({{n}, DType::u8}),
        copy(copy_type == DType::none ? OwnedTensor() : OwnedTensor({{n}, copy_type})),
        m_scale({{AdamW8::blocks(n)}, DType::f32}),
        v_scale({{AdamW8::blocks(n)}, DType::f32}) {
    for (auto* t : {&m, &v, &m_scale, &v_scale})
      if (t->tensor.bytes() > 0) std::memset(t->tensor.data(), 0, static_cast<std::size_t>(t->tensor.bytes()));
  }
  std::vector<Tensor> state() const {
    std::vector<Tensor> list{value.tensor, m.tensor, v.tensor, m_scale.tensor, v_scale.tensor};
    if (copy.tensor) list.push_back(copy.tensor);
    return list;
  }
};

/// The update of some tensors as a program.
struct Model {
  std::vector<One> tensors;
  AdamW::Args args{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8f, .weight_decay = 0.1f};
  StepParams params;
  std::unique_ptr<Instance> exe;

  void record() {
    Graph g;
    std::vector<AdamW8Tensor<Var>> list;
    for (const auto& o : tensors) {
      const auto leaf = [&](const char* what, const Tensor& t) {
        return t ? g.constant(fmt::format("{}.{}", what, list.size()), t) : Var();
      };
      list.push_back({leaf("p", o.value.tensor), leaf("g", o.gradient.tensor), leaf("m", o.m.tensor),
                      leaf("v", o.v.tensor), leaf("c", o.copy.tensor), leaf("ms", o.m_scale.tensor),
                      leaf("vs", o.v_scale.tensor), o.decay});
    }
    record_adamw8(g, std::span<const AdamW8Tensor<Var>>(list), args);
    exe = std::make_unique<Instance>(g.finish());
  }
  void run(int threads = 2) {
    Pool pool(threads);
    Stream s(pool, &params);
    exe->run(s);
  }
};

/// Parameters of awkward sizes; gradients of elements differ by up to e^6.
Model awkward(DType value, DType gradient) {
  Model m;
  for (std::int64_t n : {1, 15, 8192, 0, 20011, 8193, 257}) {
    const auto i = m.tensors.size();
    auto& o = m.tensors.emplace_back(n, value, gradient,
                                     i % 3 == 0                           ? DType::none
                                     : i % 3 == 1 || value == DType::bf16 ? DType::bf16
                                                                          : DType::f16);
    o.decay = i % 3 != 0;
    for (std::int64_t k = 0; k < n; ++k)
      set_element(o.value.tensor, k, Rng{1, i}.normal(static_cast<std::uint64_t>(k)));
  }
  m.record();
  return m;
}

void set_step(Model& m, int step) {
  m.params.step = step, m.params.lr = 0.01f / static_cast<float>(step + 1);
  m.params.grad_scale = 0.5f, m.params.clip_factor = step == 1 ? 0.25f : 1, m.params.skip = step == 2;
  for (std::size_t i = 0; i < m.tensors.size(); ++i)
    for (std::int64_t k = 0; k < m.tensors[i].gradient.tensor.size(); ++k) {
      const auto at = static_cast<std::uint64_t>(k);
      set_element(m.tensors[i].gradient.tensor, k,
                  Rng{static_cast<std::uint64_t>(step + 10), i}.normal(at) *
                      std::exp(2 * static_cast<double>(Rng{5, i}.normal(at))));
    }
}

/// Values follow the reference of adamw from the decoded moments, and codes are the nearest ones of its moments.
void expect_reference_step(Model& m, int step) {
  set_step(m, step);
  std::vector<std::vector<double>> p, rm, rv;
  for (auto& o : m.tensors) {
    const auto n = o.value.tensor.size();
    const Spec f{{n}, DType::f32};
    contract::Values moments[2] = {{f, std::vector<double>(static_cast<std::size_t>(n))},
                                   {f, std::vector<double>(static_cast<std::size_t>(n))}};
    for (std::int64_t i = 0; i < n; ++i)
      moments[0][i] = of_code(o.m.tensor, o.m_scale.tensor, i),
      moments[1][i] = of_code(o.v.tensor, o.v_scale.tensor, i);
    contract::AdamWCall call{m.args, m.params.lr, m.params.grad_scale * m.params.clip_factor, m.params.step};
    if (!o.decay) call.args.weight_decay = 0;
    const contract::Values in[] = {contract::values_of(o.value.tensor), contract::values_of(o.gradient.tensor),
                                   moments[0], moments[1]};
    contract::Expected out[] = {contract::Expected(f), contract::Expected(f), contract::Expected(f)};
    contract::adamw_reference(out, in, call);
    p.push_back(m.params.skip ? in[0].v : out[0].value), rm.push_back(m.params.skip ? moments[0].v : out[1].value),
        rv.push_back(m.params.skip ? moments[1].v : out[2].value);
  }
  m.run();
  for (std::size_t t = 0; t < m.tensors.size(); ++t) {
    const auto& o = m.tensors[t];
    const bool half = o.value.tensor.dtype() == DType::bf16;
    for (std::int64_t b = 0; b < o.m_scale.tensor.size(); ++b) {
      const auto begin = b * kBlock, end = std::min(begin + kBlock, o.value.tensor.size());
      double most_m = 0, most_v = 0;
      for (auto i = begin; i < end; ++i)
        most_m = std::max(most_m, std::fabs(rm[t][static_cast<std::size_t>(i)])),
        most_v = std::max(most_v, rv[t][static_cast<std::size_t>(i)]);
      const double ms = element(o.m_scale.tensor, b), vs = element(o.v_scale.tensor, b);
      ASSERT_NEAR(ms, most_m, 1e-6 * most_m);
      ASSERT_NEAR(vs, most_v, 1e-6 * most_v);
      for (auto i = begin; i < end; ++i) {
        SCOPED_TRACE(fmt::format("tensor {} element {}", t, i));
        const auto at = static_cast<std::size_t>(i);
        const auto value = static_cast<float>(element(o.value.tensor, i));
        ASSERT_NEAR(value, p[t][at], half ? 0x1p-8 * 5 : 2e-6);
        expect_code(element(o.m.tensor, i), rm[t][at], ms, true);
        expect_code(element(o.v.tensor, i), rv[t][at], vs, false);
        if (::testing::Test::HasFatalFailure()) return;
        if (!o.copy.tensor) continue;
        ASSERT_EQ(element(o.copy.tensor, i), o.copy.tensor.dtype() == DType::f16 ? static_cast<float>(f16(value))
                                                                                 : static_cast<float>(bf16(value)));
      }
    }
  }
}

TEST(adamw8, follows_the_reference_with_the_nearest_codes) {
  testing::for_each_isa([] {
    for (const auto value : {DType::f32, DType::bf16})
      for (const auto gradient : {DType::f32, DType::bf16}) {
        auto m = awkward(value, gradient);
        for (int step = 0; step < 4; ++step) {
          SCOPED_TRACE(fmt::format("{} {} step {}", dtype_name(value), dtype_name(gradient), step));
          expect_reference_step(m, step);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
  });
}

void expect_same_state(const One& a, const One& b) {
  const auto left = a.state(), right = b.state();
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(left[i].bytes() == 0 ||
                std::memcmp(left[i].data(), right[i].data(), static_cast<std::size_t>(left[i].bytes())) == 0)
        << i;
}

TEST(adamw8, same_bits_whatever_the_threads) {
  testing::for_each_isa([] {
    auto one = awkward(DType::f32, DType::bf16), three = awkward(DType::f32, DType::bf16);
    for (int step = 0; step < 4; ++step) {
      set_step(one, step), set_step(three, step);
      one.run(1), three.run(3);
    }
    for (std::size_t i = 0; i < one.tensors.size(); ++i) expect_same_state(one.tensors[i], three.tensors[i]);
  });
}

/// A share that begins with a block is updated like that part of the whole tensor.
TEST(adamw8, same_bits_in_parts) {
  testing::for_each_isa([] {
    constexpr std::int64_t kWhole = 5 * kBlock + 17;
    Model whole, parts;
    whole.tensors.emplace_back(kWhole, DType::f32, DType::f32);
    for (const std::int64_t n : {2 * kBlock, kWhole - 2 * kBlock})
      parts.tensors.emplace_back(n, DType::f32, DType::f32);
    whole.record(), parts.record();
    auto& all = whole.tensors[0];
    for (std::int64_t i = 0; i < kWhole; ++i) set_element(all.value.tensor, i, Rng{1, 1}.normal(std::uint64_t(i)));
    const auto split = [&](auto member) {
      auto* from = (all.*member).tensor.template ptr<float>();
      for (auto& t : parts.tensors) {
        std::memcpy((t.*member).tensor.data(), from, static_cast<std::size_t>((t.*member).tensor.bytes()));
        from += (t.*member).tensor.size();
      }
    };
    split(&One::value);
    for (int step = 0; step < 5; ++step) {
      set_step(whole, step);
      parts.params = whole.params;
      split(&One::gradient);
      whole.run(), parts.run();
    }
    const auto expect_same = [&](auto member) {
      const auto* at = (all.*member).tensor.template ptr<std::byte>();
      for (auto& t : parts.tensors) {
        const auto bytes = (t.*member).tensor.bytes();
        EXPECT_EQ(std::memcmp(at, (t.*member).tensor.data(), static_cast<std::size_t>(bytes)), 0);
        at += bytes;
      }
    };
    for (auto member : {&One::value, &One::m, &One::v, &One::m_scale, &One::v_scale}) expect_same(member);
  });
}

/// Gradients of one block, the others have 1.
Model with_gradients(std::initializer_list<float> first) {
  Model m;
  auto& o = m.tensors.emplace_back(3 * kBlock, DType::f32, DType::f32);
  for (std::int64_t i = 0; i < 3 * kBlock; ++i) set_element(o.value.tensor, i, 1), set_element(o.gradient.tensor, i, 1);
  for (std::int64_t i = 0; i < kBlock; ++i) set_element(o.gradient.tensor, i, 0);
  std::copy(first.begin(), first.end(), o.gradient.tensor.ptr<float>());
  m.params.lr = 0.125f, m.args.weight_decay = 0;
  m.record();
  return m;
}

TEST(adamw8, a_block_without_gradients_stays_as_it_is) {
  testing::for_each_isa([] {
    auto m = with_gradients({});
    for (int step = 0; step < 3; ++step) m.params.step = step, m.run();
    const auto& o = m.tensors[0];
    EXPECT_EQ(element(o.m_scale.tensor, 0), 0);
    EXPECT_EQ(element(o.v_scale.tensor, 0), 0);
    for (std::int64_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(element(o.value.tensor, i), 1) << i;
      ASSERT_EQ(element(o.m.tensor, i), 0) << i;
      ASSERT_EQ(element(o.v.tensor, i), 0) << i;
    }
    EXPECT_NEAR(element(o.value.tensor, kBlock), 1 - 3 * 0.125, 1e-3);
  });
}

/// As in f32, such an element is lost. Here its block is, and no other one.
TEST(adamw8, numbers_that_are_not_finite_make_their_block_nan) {
  testing::for_each_isa([] {
    for (const float bad : {kNan, kInf, -kInf, 1e30f}) {  // of which the square overflows
      auto m = with_gradients({0, 2, bad});
      m.run();
      m.tensors[0].gradient.tensor.ptr<float>()[2] = 0;
      m.params.step = 1, m.run();
      const auto& o = m.tensors[0];
      EXPECT_TRUE(std::isnan(element(o.v_scale.tensor, 0))) << bad;
      for (std::int64_t i = 0; i < kBlock; ++i) ASSERT_TRUE(std::isnan(element(o.value.tensor, i))) << bad << " " << i;
      for (std::int64_t i = kBlock; i < 3 * kBlock; ++i)
        ASSERT_TRUE(std::isfinite(element(o.value.tensor, i))) << bad << " " << i;
      EXPECT_TRUE(std::isfinite(element(o.m_scale.tensor, 1)) && std::isfinite(element(o.v_scale.tensor, 2)));
    }
  });
}

/// Moments below what f32 can divide by, and next to moments 10^12 times as large.
TEST(adamw8, tiny_moments_keep_their_updates_small) {
  testing::for_each_isa([] {
    for (const float large : {0.0f, 1e6f}) {
      auto m = with_gradients({large, 1e-22f, -1e-15f, 1e-10f, 1e-6f});
      for (int step = 0; step < 20; ++step) m.params.step = step, m.run();
      for (std::int64_t i = 0; i < kBlock; ++i) {
        // A step is at most lr, and no more than that in the wrong direction.
        ASSERT_NEAR(element(m.tensors[0].value.tensor, i), 1, 20 * 0.125 * 1.5) << large << " " << i;
      }
      EXPECT_TRUE(std::isfinite(element(m.tensors[0].v_scale.tensor, 0)));
    }
  });
}

TEST(adamw8, refuses_state_of_another_type_or_size) {
  Graph g;
  const auto input = [&](const char* name, std::int64_t n, DType d) { return g.input(name, {{n}, d}); };
  const Var p = input("p", 300, DType::f32), m = input("m", 300, DType::i8), v = input("v", 300, DType::u8),
            scale = input("s", 2, DType::f32), few = input("few", 1, DType::f32);
  const auto error = [&](const AdamW8Tensor<Var>& t) -> std::string {
    try {
      record_adamw8(g, std::span(&t, 1), {});
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(error({p, p, m, v, {}, scale, scale}), "none");
  EXPECT_NE(error({p, p, v, v, {}, scale, scale}).find("m must be I8 (300), got U8 (300)"), std::string::npos);
  EXPECT_NE(error({p, p, m, m, {}, scale, scale}).find("v must be U8 (300), got I8 (300)"), std::string::npos);
  EXPECT_NE(error({p, p, m, v, {}, scale, few}).find("the scales of v must be F32, one for each of the 2 blocks"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl
