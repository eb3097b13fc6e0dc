#include "hpcdl/quant/rotated.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/ops/quant_linear/rotation.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/dequantize.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

OwnedTensor drawn(std::int64_t rows, std::int64_t columns, const std::function<double(const Rng&, std::uint64_t)>& f) {
  const Rng rng{23, 6};
  OwnedTensor t({{rows, columns}, DType::f32});
  for (std::int64_t i = 0; i < t.tensor.size(); ++i)
    t.tensor.ptr<float>()[i] = static_cast<float>(f(rng, static_cast<std::uint64_t>(i)));
  return t;
}
double normal(const Rng& rng, std::uint64_t i) { return 0.02 * rng.normal(i); }
/// Student's t with 4 degrees of freedom.
double student(const Rng& rng, std::uint64_t i) {
  double squares = 0;
  for (std::uint64_t j = 1; j <= 4; ++j) squares += std::pow(rng.normal(i + (j << 40)), 2);
  return 0.02 * rng.normal(i) / std::sqrt(squares / 4);
}
double with_outliers(const Rng& rng, std::uint64_t i) {
  return normal(rng, i) * (rng.below(i + (std::uint64_t{1} << 41), 100) == 0 ? 10 : 1);
}

std::uint32_t crc_of(const Tensor& t) {
  return io::crc32c({static_cast<const std::byte*>(t.data()), static_cast<std::size_t>(t.bytes())});
}

/// By the definition: each sum one by one, in double.
TEST(rotation, is_the_matrix_of_hadamard_with_signs) {
  const Rng rng{2, 2};
  double x[kRotated], y[kRotated];
  for (int i = 0; i < kRotated; ++i) x[i] = y[i] = rng.normal(static_cast<std::uint64_t>(i));
  rotate(y);
  int flips = 0;
  for (int i = 0; i < kRotated; ++i) {
    double want = 0;
    for (int j = 0; j < kRotated; ++j)
      want += (std::popcount(static_cast<unsigned>(i & j)) % 2 ? -1 : 1) * (rotation_flips(j) ? -x[j] : x[j]) / 16;
    EXPECT_NEAR(y[i], want, 1e-13);
    flips += rotation_flips(i);
  }
  EXPECT_NEAR(flips, 128, 24);
  rotate_back(y);
  for (int i = 0; i < kRotated; ++i) EXPECT_NEAR(y[i], x[i], 1e-14);
}

struct Source {
  const char* name;
  double (*draw)(const Rng&, std::uint64_t);
  double most, least;  // mean squared error of rot3, as a part of the mean square
};

/// Whatever the distribution of weights, the error is about that of 8 values for normal numbers, 0.0345.
TEST(rot3, has_the_error_of_normal_numbers) {
  Pool pool(2);
  for (const auto& [name, draw, most, least] :
       {Source{"normal", normal, 0.035, 0.032}, Source{"student", student, 0.035, 0.032},
        Source{"outliers", with_outliers, 0.035, 0.028}}) {
    const auto w = drawn(128, 2048, draw);
    nn::RoundingError error, ternary;
    const auto q = quantize_rotated(pool, w.tensor, QuantFormat::rot3, false, &error);
    EXPECT_LE(error.squared / error.origin, most) << name;
    EXPECT_GE(error.squared / error.origin, least) << name;
    const double bits = 8.0 * static_cast<double>(q.codes.tensor.bytes() + q.scale.tensor.bytes()) / (128 * 2048);
    EXPECT_LE(bits, 3.13);
    const auto t = quantize_rotated(pool, w.tensor, QuantFormat::rot_ternary, false, &ternary);
    EXPECT_LE(ternary.squared / ternary.origin, 0.195) << name;
    EXPECT_EQ(8.0 * static_cast<double>(t.codes.tensor.bytes() + t.scale.tensor.bytes()) / (128 * 2048), 1.75);
  }
}

TEST(rotated, error_is_that_of_the_values_that_kernels_read) {
  Pool pool(2);
  const auto w = drawn(19, 512, with_outliers);
  for (const auto* codec : {&rot3_codec, &rot_ternary_codec}) {
    nn::RoundingError error;
    const auto parts = codec->quantize(pool, w.tensor, {}, false, error, "w");
    const auto values = dequantize(pool, *codec, {parts[0].tensor, parts[1].tensor}, 19);
    double squared = 0;
    for (std::int64_t i = 0; i < w.tensor.size(); ++i)
      squared += std::pow(static_cast<double>(values.tensor.ptr<float>()[i] - w.tensor.ptr<float>()[i]), 2);
    EXPECT_NEAR(error.squared, squared, 1e-6 * squared) << codec->name;
    EXPECT_GT(error.largest, 0);
  }
}

TEST(rotated, does_not_depend_on_threads_or_layout) {
  Pool one(1), two(2);
  const auto w = drawn(33, 256, student);
  OwnedTensor turned({{256, 33}, DType::f32});
  for (int r = 0; r < 33; ++r)
    for (int i = 0; i < 256; ++i) turned.tensor.ptr<float>()[i * 33 + r] = w.tensor.ptr<float>()[r * 256 + i];
  for (const auto format : {QuantFormat::rot3, QuantFormat::rot_ternary}) {
    const auto a = quantize_rotated(one, w.tensor, format), b = quantize_rotated(two, w.tensor, format),
               c = quantize_rotated(two, turned.tensor, format, true);
    for (const auto* other : {&b, &c}) {
      EXPECT_EQ(crc_of(a.codes.tensor), crc_of(other->codes.tensor));
      EXPECT_EQ(crc_of(a.scale.tensor), crc_of(other->scale.tensor));
    }
  }
}

/// Checksums of the first version: its files must stay readable.
TEST(rotated, bytes_stay_as_they_are) {
  Pool pool(2);
  const Rng rng{3, 3};
  const auto w = drawn(5, 512, [&](const Rng&, std::uint64_t i) { return rng.uniform(i) - 0.5f; });
  const auto a = quantize_rotated(pool, w.tensor, QuantFormat::rot3),
             b = quantize_rotated(pool, w.tensor, QuantFormat::rot_ternary);
  EXPECT_EQ(crc_of(a.codes.tensor), 1787404607u);
  EXPECT_EQ(crc_of(b.codes.tensor), 1526566368u);
}

TEST(rotated, takes_zeros_and_refuses_what_it_cannot_hold) {
  Pool pool(2);
  auto w = drawn(4, 512, [](const Rng&, std::uint64_t i) { return i < 256 ? 0 : i < 512 ? 1e-39 : 1e37; });
  for (const auto format : {QuantFormat::rot3, QuantFormat::rot_ternary}) {
    nn::RoundingError error;
    const auto q = quantize_rotated(pool, w.tensor, format, false, &error);
    EXPECT_EQ(q.scale.tensor.ptr<float>()[0], 0);
    EXPECT_EQ(q.scale.tensor.ptr<float>()[1], 0);
    for (int b = 2; b < 8; ++b) EXPECT_TRUE(std::isfinite(q.scale.tensor.ptr<float>()[b]));
  }
  w.tensor.ptr<float>()[700] = std::numeric_limits<float>::infinity();
  const auto message = [&](const View& v) -> std::string {
    try {
      quantize_rotated(pool, v, QuantFormat::rot3, false, nullptr, "a.weight");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message(w.tensor).find("a.weight: weight [1, 188]"), std::string::npos) << message(w.tensor);
  const auto odd = drawn(4, 128, normal);
  EXPECT_NE(message(odd.tensor).find("needs a multiple of 256 inputs"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::quant
