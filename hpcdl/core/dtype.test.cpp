#include "hpcdl/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hpcdl {
namespace {

// Nearest representable value by search among the neighbours, ties to even: the definition that rounding must agree
// with.
template <class T> std::uint16_t nearest(float x, std::uint16_t guess) {
  std::uint16_t best = guess;
  double error = INFINITY;
  for (int d = -2; d <= 2; ++d) {
    T candidate;
    candidate.bits = static_cast<std::uint16_t>(guess + d);
    if (!std::isfinite(float(candidate))) continue;
    const double e = std::fabs(double(float(candidate)) - double(x));
    if (e < error || (e == error && candidate.bits % 2 == 0)) best = candidate.bits, error = e;
  }
  return best;
}

template <class T> void check_rounding() {
  std::uint32_t bits = 12345;
  for (int i = 0; i < 200000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x) || std::fabs(x) > 60000) continue;
    const T y(x);
    ASSERT_EQ(y.bits, nearest<T>(x, y.bits)) << x;
  }
}

TEST(dtype, bf16_rounds_to_nearest_even) { check_rounding<bf16>(); }
TEST(dtype, f16_rounds_to_nearest_even) { check_rounding<f16>(); }

template <class T> void check_every_value() {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    T x;
    x.bits = static_cast<std::uint16_t>(b);
    if (std::isnan(float(x))) EXPECT_TRUE(std::isnan(float(T(float(x))))) << b;
    else ASSERT_EQ(T(float(x)).bits, x.bits) << b;
  }
}

TEST(dtype, every_bf16_survives_a_float) { check_every_value<bf16>(); }
TEST(dtype, every_f16_survives_a_float) { check_every_value<f16>(); }

TEST(dtype, overflow_and_underflow) {
  EXPECT_TRUE(std::isinf(float(f16(65520.0f))));
  EXPECT_EQ(float(f16(65519.0f)), 65504.0f);
  EXPECT_EQ(float(f16(0x1p-25f)), 0.0f);  // a tie with zero, which is even
  EXPECT_EQ(float(f16(-0x1.8p-25f)), -0x1p-24f);
  EXPECT_TRUE(std::isinf(float(bf16(std::numeric_limits<float>::max()))));
}

TEST(dtype, names_are_those_of_safetensors_and_lead_back) {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto d = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(d)), d);
    EXPECT_GT(dtype_bytes(d), 0);
  }
  EXPECT_EQ(dtype_from_name("F31"), DType::none);
  EXPECT_EQ(dtype_name(DType::bf16), "BF16");
}

}  // namespace
}  // namespace hpcdl
