// 8-bit floats (core/f8.h) by their definition, and against ml_dtypes.

#include "hpcdl/core/f8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hpcdl/io/python_for_tests.h"

namespace hpcdl {
namespace {

template <class F> F code(int bits) { return F{static_cast<std::uint8_t>(bits)}; }
template <class F> double number(int bits) { return static_cast<double>(from_f8(code<F>(bits))); }

/// By the definition: sign, exponent, mantissa.
template <class F> double defined(int bits) {
  constexpr bool kE4m3 = std::is_same_v<F, f8_e4m3>;
  constexpr int kMantissa = kE4m3 ? 3 : 2, kBias = kE4m3 ? 7 : 15, kTop = kE4m3 ? 15 : 31;
  const int exponent = (bits & 0x7f) >> kMantissa, mantissa = bits & ((1 << kMantissa) - 1);
  double v = std::ldexp(mantissa + (exponent > 0 ? 1 << kMantissa : 0), std::max(exponent, 1) - kBias - kMantissa);
  if (!kE4m3 && exponent == kTop) v = mantissa > 0 ? NAN : INFINITY;
  if (kE4m3 && exponent == kTop && mantissa == 7) v = NAN;
  return bits & 0x80 ? -v : v;
}

template <class F> void check_every_code() {
  for (int bits = 0; bits < 256; ++bits) {
    const double want = defined<F>(bits), got = number<F>(bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_EQ(to_f8<F>(static_cast<float>(got)).bits, 0x7f);
      continue;
    }
    EXPECT_EQ(got, want) << bits;
    EXPECT_EQ(std::signbit(got), std::signbit(want)) << bits;
    EXPECT_EQ(to_f8<F>(static_cast<float>(got)).bits, std::isfinite(want) ? bits : (bits & 0x80) | 0x7b);
  }
}
TEST(f8, every_code_is_the_number_that_its_bits_say) {
  check_every_code<f8_e4m3>();
  check_every_code<f8_e5m2>();
}

/// The nearest finite number, ties to the even code; by search. x >= 0.
template <class F> int nearest(double x) {
  constexpr int kLargest = std::is_same_v<F, f8_e4m3> ? 0x7e : 0x7b;
  int low = 0, high = kLargest;  // codes of numbers that are at least 0 grow with them
  if (x >= defined<F>(kLargest)) return kLargest;
  while (high - low > 1) (defined<F>((low + high) / 2) <= x ? low : high) = (low + high) / 2;
  const double below = x - defined<F>(low), above = defined<F>(high) - x;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

/// Every 65,521th of all 2^32 floats, and all around the numbers and the middles between them.
template <class F> void check_floats() {
  const auto check = [](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    const int got = to_f8<F>(x).bits;
    if (std::isnan(x)) return got == 0x7f;
    return got == (nearest<F>(std::fabs(static_cast<double>(x))) | (std::signbit(x) ? 0x80 : 0));
  };
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 65521)
    ASSERT_TRUE(check(static_cast<std::uint32_t>(bits))) << std::hex << bits;
  for (int i = 0; i + 1 < 0x7f; ++i)
    for (const double at : {defined<F>(i), (defined<F>(i) + defined<F>(i + 1)) / 2}) {
      if (!std::isfinite(at)) continue;
      const auto middle = std::bit_cast<std::uint32_t>(static_cast<float>(at));
      for (int d = -3; d <= 3; ++d)
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
          const std::uint32_t bits = (middle + static_cast<std::uint32_t>(d)) ^ sign;
          ASSERT_TRUE(check(bits)) << std::hex << bits;
        }
    }
}
TEST(f8, floats_round_to_the_nearest_number_and_saturate) {
  check_floats<f8_e4m3>();
  check_floats<f8_e5m2>();
  for (const float x : {449.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(from_f8(to_f8<f8_e4m3>(x)), 448);
    EXPECT_EQ(from_f8(to_f8<f8_e4m3>(-x)), -448);
  }
  EXPECT_EQ(from_f8(to_f8<f8_e5m2>(1e30f)), 57344);
  EXPECT_EQ(from_f8(to_f8<f8_e5m2>(-std::numeric_limits<float>::infinity())), -57344);
}

TEST(f8, scale_leads_the_largest_magnitude_to_the_largest_number) {
  EXPECT_EQ(f8_scale<f8_e4m3>(448), 1);
  EXPECT_EQ(f8_scale<f8_e5m2>(57344 * 4), 4);
  EXPECT_EQ(f8_scale<f8_e4m3>(0), 1) << "of zeros";
  for (const float amax : {1e-45f, 1e-38f, 1.0f, 3e38f, std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(std::isfinite(1 / f8_scale<f8_e4m3>(amax))) << amax;
    EXPECT_TRUE(std::isfinite(1 / f8_scale<f8_e5m2>(amax))) << amax;
  }
}

// All codes back, and all values of 16 bits forward. ml_dtypes gives infinity or NaN beyond the range, so that it gets
// what is already within it.
constexpr const char* kTables = R"(import sys, numpy, ml_dtypes
codes = numpy.arange(256, dtype=numpy.uint8)
values = numpy.arange(65536, dtype=numpy.uint16)
with open(sys.argv[1], "wb") as out:
    for dtype, largest in ((ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e5m2, 57344)):
        out.write(codes.view(dtype).astype(numpy.float32).tobytes())
        for wide in (ml_dtypes.bfloat16, numpy.float16):
            x = values.view(wide).astype(numpy.float32)
            rounded = numpy.clip(x, -largest, largest).astype(dtype).view(numpy.uint8)
            out.write(numpy.where(numpy.isnan(x), 0x7f, rounded).astype(numpy.uint8).tobytes())
)";

template <class F> void compare_tables(const char*& at) {
  for (int i = 0; i < 256; ++i, at += 4) {
    float want;
    std::memcpy(&want, at, 4);
    const float got = from_f8(code<F>(i));
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got)
                                 : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want))
        << i;
  }
  const auto forward = [&]<class Wide>() {
    for (int i = 0; i < 65536; ++i, ++at) {
      Wide x;
      x.bits = static_cast<std::uint16_t>(i);
      ASSERT_EQ(int{to_f8<F>(static_cast<float>(x)).bits}, int{static_cast<unsigned char>(*at)}) << i;
    }
  };
  forward.template operator()<bf16>();
  if (!::testing::Test::HasFatalFailure()) forward.template operator()<f16>();
}

TEST(f8, conversions_equal_those_of_ml_dtypes) {
  const auto python = io::find_python("numpy, ml_dtypes");
  if (!python) GTEST_SKIP() << "needs Python with numpy and ml_dtypes";
  const io::TempFolder tmp;
  const std::string file = (tmp / "tables").string();
  bool ok = false;
  const std::string said = io::run_python(*python, kTables, file, ok);
  ASSERT_TRUE(ok) << said;
  const std::string tables = io::read_file(file);
  ASSERT_EQ(tables.size(), 2u * (256 * 4 + 2 * 65536));
  const char* at = tables.data();
  compare_tables<f8_e4m3>(at);
  if (!HasFatalFailure()) compare_tables<f8_e5m2>(at);
}

}  // namespace
}  // namespace hpcdl
