#include "hpcdl/quant/float_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/core/f8.h"
#include "hpcdl/core/mx.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/dequantize.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

OwnedTensor drawn(std::int64_t rows, std::int64_t columns) {
  const Rng rng{29, 1};
  OwnedTensor t({{rows, columns}, DType::f32});
  for (std::int64_t i = 0; i < t.tensor.size(); ++i)
    t.tensor.ptr<float>()[i] = static_cast<float>(0.02 * rng.normal(static_cast<std::uint64_t>(i)));
  return t;
}

std::uint32_t crc_of(const Tensor& t) {
  return io::crc32c({static_cast<const std::byte*>(t.data()), static_cast<std::size_t>(t.bytes())});
}

/// The nearest of all 16 values, and of two the one with the even code.
TEST(e2m1, rounds_to_the_nearest_and_ties_to_even) {
  const auto by_search = [](double x) {
    int best = 0;
    for (int code = 0; code < 8; ++code) {
      const double d = std::fabs(std::fabs(x) - static_cast<double>(kE2m1Values[code])),
                   least = std::fabs(std::fabs(x) - static_cast<double>(kE2m1Values[best]));
      if (d < least || (d == least && code % 2 == 0)) best = code;
    }
    return best | (std::signbit(x) ? 8 : 0);
  };
  for (int i = -4000; i <= 4000; ++i) {
    const float x = static_cast<float>(i) / 512;
    EXPECT_EQ(to_e2m1(x), by_search(static_cast<double>(x))) << x;
  }
  for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f})
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 9.0f), -tie})
      EXPECT_EQ(to_e2m1(x), by_search(static_cast<double>(x))) << x;
  for (int code = 0; code < 16; ++code) EXPECT_EQ(to_e2m1(kE2m1Values[code]), code);
  EXPECT_EQ(to_e2m1(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(to_e2m1(-1e30f), 15);
  EXPECT_EQ(to_e2m1(std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(to_e2m1(1e-40f), 0);
}

TEST(e8m0, holds_every_power_of_two) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(from_e8m0(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  EXPECT_TRUE(std::isnan(from_e8m0(255)));
  for (const float largest : {6.0f, 4.0f, 7.9f, 1.0f, 0.9f, 3e-5f, 1e38f, std::numeric_limits<float>::max()}) {
    const float part = largest / from_e8m0(e8m0_scale(largest));
    EXPECT_GE(part, 4) << largest;
    EXPECT_LT(part, 8) << largest;
  }
  EXPECT_EQ(e8m0_scale(0), 0);
  EXPECT_EQ(e8m0_scale(1e-45f), 0);
}

TEST(mxfp4, is_the_conversion_of_the_specification) {
  Pool pool(2);
  const auto w = drawn(9, 96);
  const auto q = quantize_mxfp4(pool, w.tensor, false);
  for (std::int64_t b = 0; b < 27; ++b) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(w.tensor.ptr<float>()[32 * b + i]));
    const int exponent = static_cast<int>(std::floor(std::log2(static_cast<double>(largest)))) - 2;
    ASSERT_EQ(q.scale.tensor.ptr<std::uint8_t>()[b], exponent + 127);
    for (int i = 0; i < 32; ++i) {
      const int byte = q.codes.tensor.ptr<std::uint8_t>()[(32 * b + i) / 2];
      EXPECT_EQ(i % 2 == 0 ? byte & 15 : byte >> 4, to_e2m1(std::ldexp(w.tensor.ptr<float>()[32 * b + i], -exponent)));
    }
  }
  nn::RoundingError plain, searched;
  quantize_mxfp4(pool, w.tensor, false, false, &plain);
  quantize_mxfp4(pool, w.tensor, true, false, &searched);
  EXPECT_LT(searched.squared, plain.squared);
  EXPECT_EQ(8 * (q.codes.tensor.bytes() + q.scale.tensor.bytes()), 9 * 96 * 17 / 4);
}

TEST(fp8, puts_the_largest_of_a_row_at_the_largest_value) {
  Pool pool(2);
  const auto w = drawn(7, 64);
  nn::RoundingError error;
  const auto q = quantize_fp8(pool, w.tensor, false, &error);
  for (int r = 0; r < 7; ++r) {
    float largest = 0;
    for (int i = 0; i < 64; ++i) largest = std::max(largest, std::fabs(w.tensor.ptr<float>()[64 * r + i]));
    const float scale = q.scale.tensor.ptr<float>()[r];
    EXPECT_EQ(scale, largest / 448);
    for (int i = 0; i < 64; ++i)
      EXPECT_EQ(q.codes.tensor.ptr<std::uint8_t>()[64 * r + i],
                to_f8<f8_e4m3>(w.tensor.ptr<float>()[64 * r + i] / scale).bits);
  }
  EXPECT_LT(error.relative_rms(), 0.04);
  EXPECT_GT(error.relative_rms(), 0.01);
}

/// Every code of either format, as kernels read it.
TEST(float_codes, every_code_is_read_as_its_value) {
  Pool pool(2);
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  const float one = 1;
  const auto fp8 =
      dequantize(pool, fp8_codec, {View(codes.data(), {{1, 256}, DType::u8}), View(&one, {{1}, DType::f32})}, 1);
  for (int i = 0; i < 256; ++i) {
    const float want = (i & 127) == 127 ? (i > 127 ? -480 : 480) : from_f8(f8_e4m3{static_cast<std::uint8_t>(i)});
    EXPECT_EQ(fp8.tensor.ptr<float>()[i], want) << i;
  }
  std::vector<std::uint8_t> scales(16, 127);
  scales[3] = 0, scales[4] = 254, scales[5] = 130;
  const auto mx = dequantize(pool, mxfp4_codec,
                             {View(codes.data(), {{1, 256}, DType::u8}), View(scales.data(), {{1, 16}, DType::u8})}, 1);
  for (std::size_t i = 0; i < 512; ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
    EXPECT_EQ(mx.tensor.ptr<float>()[i], kE2m1Values[code] * std::ldexp(1.0f, scales[i / 32] - 127)) << i;
  }
}

/// Checksums of the first version: its files must stay readable.
TEST(float_codes, bytes_stay_as_they_are) {
  Pool pool(2);
  const Rng rng{3, 3};
  OwnedTensor w({{5, 64}, DType::f32});
  for (std::uint64_t i = 0; i < 320; ++i) w.tensor.ptr<float>()[i] = static_cast<float>(rng.uniform(i)) - 0.5f;
  EXPECT_EQ(crc_of(quantize_fp8(pool, w.tensor).codes.tensor), 1037333220u);
  EXPECT_EQ(crc_of(quantize_mxfp4(pool, w.tensor, true).codes.tensor), 3972083418u);
}

TEST(float_codes, take_zeros_and_extremes_and_refuse_nan) {
  Pool pool(2);
  OwnedTensor w({{3, 32}, DType::f32});
  for (int i = 0; i < 96; ++i)
    w.tensor.ptr<float>()[i] = i < 32 ? 0 : i < 64 ? 1e-44f : std::numeric_limits<float>::max();
  const auto a = quantize_fp8(pool, w.tensor), b = quantize_mxfp4(pool, w.tensor, true);
  EXPECT_EQ(a.scale.tensor.ptr<float>()[0], 0);
  for (const auto& [codec, q] : {std::pair(&fp8_codec, &a), std::pair(&mxfp4_codec, &b)}) {
    const auto values = dequantize(pool, *codec, {q->codes.tensor, q->scale.tensor}, 3);
    for (int i = 0; i < 96; ++i) EXPECT_TRUE(std::isfinite(values.tensor.ptr<float>()[i])) << codec->name << ' ' << i;
    for (int i = 0; i < 32; ++i) EXPECT_EQ(values.tensor.ptr<float>()[i], 0) << codec->name;
  }
  w.tensor.ptr<float>()[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(quantize_fp8(pool, w.tensor), Error);
  EXPECT_THROW(quantize_mxfp4(pool, w.tensor, false), Error);
}

}  // namespace
}  // namespace hpcdl::quant
