#include "hpcdl/simd/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/red_zone.h"
#include "hpcdl/simd/math_probe.h"

namespace hpcdl::simd {
namespace {

class MathOnEveryIsa : public testing::TestWithParam<IsaKind> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this CPU lacks " << isa_name(GetParam());
  }
  std::vector<float> run(MathFn fn, const std::vector<float>& x) const {
    std::vector<float> y(x.size());
    with_isa(GetParam(), [&](auto isa) { math_probe(isa, fn, y.data(), x.data(), static_cast<int>(x.size())); });
    return y;
  }
};

/// Masked instructions stop within a register, at the end of the data.
TEST_P(MathOnEveryIsa, numbers_past_the_end_are_reported_by_an_address_sanitizer) {
#ifndef HPCDL_RED_ZONES
  GTEST_SKIP() << "built without an address sanitizer";
#else
  const Buffer x(5 * sizeof(float)), y(6 * sizeof(float));
  const auto past = [&](const Buffer& from, const Buffer& to) {
    with_isa(GetParam(), [&](auto isa) {
      math_probe(isa, MathFn::exp, reinterpret_cast<float*>(to.data()), reinterpret_cast<const float*>(from.data()), 6);
    });
  };
  EXPECT_DEATH(past(x, y), "use-after-poison");
  EXPECT_DEATH(past(y, x), "use-after-poison");
#endif
}

std::vector<float> grid(float lo, float hi, int n = 20011) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = lo + (hi - lo) * static_cast<float>(i) / static_cast<float>(n - 1);
  return x;
}

template <class Ref> double worst_relative(const std::vector<float>& x, const std::vector<float>& y, Ref ref) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = ref(static_cast<double>(x[i]));
    worst = std::max(worst, std::fabs(y[i] - want) / std::max(std::fabs(want), 1e-30));
  }
  return worst;
}
template <class Ref> double worst_absolute(const std::vector<float>& x, const std::vector<float>& y, Ref ref) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(y[i] - ref(static_cast<double>(x[i]))));
  return worst;
}

TEST_P(MathOnEveryIsa, exp) {
  const auto x = grid(-87, 88);
  EXPECT_LT(worst_relative(x, run(MathFn::exp, x), [](double v) { return std::exp(v); }), 3e-7);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto y = run(MathFn::exp, {-inf, -200, -110, 0, 89, 1000, inf, nan});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 1);
  EXPECT_EQ(y[4], inf);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], inf);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(MathOnEveryIsa, exp2) {
  const auto x = grid(-126, 127);
  EXPECT_LT(worst_relative(x, run(MathFn::exp2, x), [](double v) { return std::exp2(v); }), 3e-7);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto y = run(MathFn::exp2, {-inf, -1000, -151, 0, 128, 1e30f, inf, nan, 10, -3});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 1);
  EXPECT_EQ(y[4], inf);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], inf);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_EQ(y[8], 1024);
  EXPECT_EQ(y[9], 0.125f);
}

TEST_P(MathOnEveryIsa, log) {
  auto x = grid(-80, 80);
  for (auto& v : x) v = std::exp(v);
  const auto y = run(MathFn::log, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::log(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], want, 1e-7 + 3e-7 * std::fabs(want)) << x[i];
  }
  const float inf = std::numeric_limits<float>::infinity();
  const auto e = run(MathFn::log, {0, 1, inf, -1, 1e-40f});
  EXPECT_EQ(e[0], -inf);
  EXPECT_EQ(e[1], 0);
  EXPECT_EQ(e[2], inf);
  EXPECT_TRUE(std::isnan(e[3]));
  EXPECT_NEAR(e[4], std::log(1e-40), 1e-3);
}

TEST_P(MathOnEveryIsa, tanh_and_sigmoid) {
  const auto x = grid(-12, 12);
  EXPECT_LT(worst_relative(x, run(MathFn::tanh, x), [](double v) { return std::tanh(v); }), 5e-7);
  EXPECT_LT(worst_relative(x, run(MathFn::sigmoid, x), [](double v) { return 1 / (1 + std::exp(-v)); }), 5e-7);
  EXPECT_NEAR(run(MathFn::sigmoid, {-1000})[0], 0, 1e-37);
  EXPECT_EQ(run(MathFn::sigmoid, {1000})[0], 1);
  EXPECT_TRUE(std::isnan(run(MathFn::sigmoid, {std::numeric_limits<float>::quiet_NaN()})[0]));
  EXPECT_EQ(run(MathFn::tanh, {1000})[0], 1);
  EXPECT_EQ(run(MathFn::tanh, {-1000})[0], -1);
}

TEST_P(MathOnEveryIsa, erf) {
  const auto x = grid(-6, 6);
  EXPECT_LT(worst_absolute(x, run(MathFn::erf, x), [](double v) { return std::erf(v); }), 3e-7);
}

TEST_P(MathOnEveryIsa, bfloat16_round_trip_matches_scalar_rounding) {
  auto x = grid(-3, 3, 4099);
  x.push_back(std::numeric_limits<float>::infinity());
  x.push_back(3.3961775e38f);
  const auto y = run(MathFn::bf16_round, x);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], static_cast<float>(bf16(x[i]))) << x[i];
  EXPECT_TRUE(std::isnan(run(MathFn::bf16_round, {std::numeric_limits<float>::quiet_NaN()})[0]));
}

INSTANTIATE_TEST_SUITE_P(Isa, MathOnEveryIsa, testing::Values(IsaKind::scalar, IsaKind::avx2, IsaKind::avx512),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

TEST(half_precision, every_f16_bit_pattern_survives_a_round_trip) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    f16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    const float v = h;
    if (std::isnan(v)) EXPECT_TRUE(std::isnan(static_cast<float>(f16(v))));
    else ASSERT_EQ(f16(v).bits, h.bits);
  }
}

}  // namespace
}  // namespace hpcdl::simd
