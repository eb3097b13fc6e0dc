#include "hpcdl/quant/four_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/int8.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

/// Normal numbers, rounded to `dtype`, some of them large; the third block of 64 is zero.
OwnedTensor drawn(std::int64_t rows, std::int64_t columns, DType dtype = DType::f32) {
  const Rng rng{17, 4};
  OwnedTensor wide({{rows, columns}, DType::f32}), out({{rows, columns}, dtype});
  for (std::int64_t i = 0; i < wide.tensor.size(); ++i) {
    const auto u = static_cast<std::uint64_t>(i);
    wide.tensor.ptr<float>()[i] =
        i / 64 == 2 ? 0 : static_cast<float>(rng.normal(u)) * (rng.below(u + (1u << 30), 50) == 0 ? 0.4f : 0.02f);
  }
  convert_elements(out.tensor, wide.tensor);
  return out;
}

float number(const View& v, std::int64_t i) {
  if (v.dtype() == DType::bf16) return v.ptr<bf16>()[i];
  return v.dtype() == DType::f16 ? float{v.ptr<f16>()[i]} : v.ptr<float>()[i];
}

std::uint32_t crc_of(const Tensor& t) {
  return io::crc32c({static_cast<const std::byte*>(t.data()), static_cast<std::size_t>(t.bytes())});
}

/// By the formula, one weight at a time: the number of middles of the table below the quotient.
TEST(nf4, codes_and_scales_are_those_of_the_formula) {
  Pool pool(2);
  for (const auto dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto w = drawn(7, 192, dtype);
    const auto q = quantize_four_bits(pool, w.tensor, QuantFormat::nf4);
    for (std::int64_t b = 0; b < 21; ++b) {
      float largest = 0;
      for (std::int64_t i = 64 * b; i < 64 * b + 64; ++i) largest = std::max(largest, std::fabs(number(w.tensor, i)));
      ASSERT_EQ(q.scale.tensor.ptr<float>()[b], largest);
      for (std::int64_t i = 64 * b; i < 64 * b + 64; ++i) {
        const float part = largest > 0 ? number(w.tensor, i) * (1 / largest) : 0;
        int want = 0;
        while (want < 15 && part > (kNf4Values[want] + kNf4Values[want + 1]) / 2) ++want;
        const int byte = q.codes.tensor.ptr<std::uint8_t>()[i / 2];
        ASSERT_EQ(i % 2 == 0 ? byte >> 4 : byte & 15, want) << i;
      }
    }
  }
}

TEST(nf4, neither_threads_nor_layout_change_a_byte) {
  Pool one(1), two(2);
  const auto w = drawn(65, 128);
  OwnedTensor turned({{128, 65}, DType::f32});
  for (std::int64_t r = 0; r < 65; ++r)
    for (std::int64_t c = 0; c < 128; ++c) turned.tensor.ptr<float>()[c * 65 + r] = w.tensor.ptr<float>()[r * 128 + c];
  for (const auto f : {QuantFormat::nf4, QuantFormat::nf4_double, QuantFormat::fp4, QuantFormat::fp4_double}) {
    const auto a = quantize_four_bits(one, w.tensor, f), b = quantize_four_bits(two, w.tensor, f),
               c = quantize_four_bits(two, turned.tensor, f, true);
    for (const auto part : {&QuantTensors::codes, &QuantTensors::scale, &QuantTensors::outer, &QuantTensors::table}) {
      ASSERT_EQ((a.*part).tensor.spec(), (b.*part).tensor.spec());
      if (!(a.*part).tensor) continue;
      EXPECT_EQ(crc_of((a.*part).tensor), crc_of((b.*part).tensor));
      EXPECT_EQ(crc_of((a.*part).tensor), crc_of((c.*part).tensor));
    }
  }
}

/// By the formula: the nearest value; of two that are as near the lower one; of the two zeros the second one for x > 0.
TEST(fp4, codes_and_scales_are_those_of_the_formula) {
  Pool pool(2);
  const auto w = drawn(7, 192);
  const auto q = quantize_four_bits(pool, w.tensor, QuantFormat::fp4);
  for (std::int64_t b = 0; b < 21; ++b) {
    float largest = 0;
    for (std::int64_t i = 64 * b; i < 64 * b + 64; ++i) largest = std::max(largest, std::fabs(number(w.tensor, i)));
    ASSERT_EQ(q.scale.tensor.ptr<float>()[b], largest);
    for (std::int64_t i = 64 * b; i < 64 * b + 64; ++i) {
      const double part = largest > 0 ? double{number(w.tensor, i) * (1 / largest)} : 0;
      int want = 0;
      for (int code = 1; code < 16; ++code) {
        const double before = std::fabs(part - kFp4Values[want]), after = std::fabs(part - kFp4Values[code]);
        if (after < before || (after == before && kFp4Values[code] < kFp4Values[want])) want = code;
      }
      if (kFp4Values[want] == 0) want = part > 0 ? 8 : 0;
      const int byte = q.codes.tensor.ptr<std::uint8_t>()[i / 2];
      ASSERT_EQ(i % 2 == 0 ? byte >> 4 : byte & 15, want) << i;
    }
  }
}

/// bitsandbytes 0.50.2 on a CPU makes the same bytes of these numbers.
TEST(four_bits, bytes_are_those_of_bitsandbytes) {
  Pool pool(1);
  OwnedTensor w({{16, 256}, DType::f32});
  for (std::int64_t i = 0; i < w.tensor.size(); ++i)
    w.tensor.ptr<float>()[i] = static_cast<float>(i * 7919 % 2001 - 1000) / 1024 * static_cast<float>(1 + i / 64 % 5);
  EXPECT_EQ(crc_of(quantize_four_bits(pool, w.tensor, QuantFormat::nf4).codes.tensor), 0xe9f0de56u);
  EXPECT_EQ(crc_of(quantize_four_bits(pool, w.tensor, QuantFormat::fp4).codes.tensor), 0xda57312cu);
}

TEST(nf4, nested_scales_take_few_bits_and_cost_little) {
  Pool pool(2);
  OwnedTensor w({{256, 1024}, DType::f32});
  const Rng rng{2, 9};
  for (std::int64_t i = 0; i < w.tensor.size(); ++i)
    w.tensor.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  nn::RoundingError plain, nested;
  quantize_four_bits(pool, w.tensor, QuantFormat::nf4, false, &plain);
  const auto q = quantize_four_bits(pool, w.tensor, QuantFormat::nf4_double, false, &nested);
  EXPECT_LT(nested.relative_rms(), 1.02 * plain.relative_rms());
  EXPECT_LT(plain.relative_rms(), 0.1);  // of normal numbers
  const auto bytes = q.codes.tensor.bytes() + q.scale.tensor.bytes() + q.outer.tensor.bytes();
  EXPECT_LE(8.0 * static_cast<double>(bytes) / static_cast<double>(w.tensor.size()), 4.13);
}

TEST(nf4, the_map_of_scales) {
  const auto& map = dynamic_map();
  EXPECT_TRUE(std::ranges::is_sorted(map));
  EXPECT_EQ(map[127], 0);
  EXPECT_EQ(map[255], 1);
  EXPECT_FLOAT_EQ(map[254], 0.9929687f);
  EXPECT_FLOAT_EQ(map[0], -0.9929687f);
  EXPECT_FLOAT_EQ(map[128], 5.5e-7f);
  for (std::size_t i = 0; i < 127; ++i) EXPECT_EQ(map[i], -map[254 - i]);
}

TEST(nf4, refuses_what_it_cannot_hold) {
  Pool pool(1);
  const auto odd = drawn(4, 96);
  EXPECT_THROW(quantize_four_bits(pool, odd.tensor, QuantFormat::nf4), Error);
  auto w = drawn(4, 128);
  w.tensor.ptr<float>()[2 * 128 + 5] = std::numeric_limits<float>::quiet_NaN();
  try {
    quantize_four_bits(pool, w.tensor, QuantFormat::nf4_double, false, nullptr, "a.weight");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("a.weight: weight [2, 5] is not a finite number"), std::string::npos)
        << e.what();
  }
  EXPECT_FALSE(misfit(nf4_codec, 96, {}).empty());
  EXPECT_TRUE(misfit(nf4_codec, 128, {.nested = true}).empty());
  EXPECT_THROW(misfit(int8_codec, 128, {.nested = true}), Error);
}

TEST(nf4, configs) {
  for (const auto& config : {io::QuantConfig{&nf4_codec, {.nested = true}}, io::QuantConfig{&nf4_codec, {}},
                             io::QuantConfig{&fp4_codec, {.nested = true}}, io::QuantConfig{&int8_codec, {}}})
    EXPECT_EQ(parse_config(make_config(config), "here"), config);
  const auto error = [](const io::Json& json) {
    try {
      parse_config(json, "here");
      return std::string("accepted");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(error({{"quant_method", "hpcdl_nf4"}, {"bits", 5}}).find("expected 4 bits, found 5"), std::string::npos);
  EXPECT_NE(error({{"quant_method", "hpcdl_nf4"}, {"bits", 4}, {"nested", 1}}).find("nested"), std::string::npos);
  EXPECT_NE(error({{"quant_method", "hpcdl_int8"}, {"bits", 8}, {"nested", true}}).find("expected false for int8"),
            std::string::npos);
}

TEST(int8_rows, codes_are_the_nearest_multiples) {
  Pool pool(2);
  const auto w = drawn(9, 96);
  nn::RoundingError error;
  const auto q = quantize_int8(pool, w.tensor, false, &error);
  for (std::int64_t r = 0; r < 9; ++r) {
    float largest = 0;
    for (std::int64_t i = 0; i < 96; ++i) largest = std::max(largest, std::fabs(w.tensor.ptr<float>()[r * 96 + i]));
    EXPECT_EQ(q.scale.tensor.ptr<float>()[r], largest);
    for (std::int64_t i = 0; i < 96; ++i) {
      const auto code = q.codes.tensor.ptr<std::int8_t>()[r * 96 + i];
      EXPECT_NEAR(code * largest / 127, w.tensor.ptr<float>()[r * 96 + i], largest / 254 * 1.0001) << r << " " << i;
    }
  }
  EXPECT_GT(error.relative_rms(), 0);
  EXPECT_LT(error.relative_rms(), 0.05);
}

TEST(int8_rows, zeros_stay_zeros) {
  Pool pool(1);
  const OwnedTensor w({{2, 32}, DType::f32});
  std::memset(w.buffer.data(), 0, static_cast<std::size_t>(w.tensor.bytes()));
  const auto q = quantize_int8(pool, w.tensor);
  EXPECT_EQ(q.scale.tensor.ptr<float>()[1], 0);
  EXPECT_EQ(q.codes.tensor.ptr<std::int8_t>()[40], 0);
}

}  // namespace
}  // namespace hpcdl::quant
