#include "hpcdl/quant/compensate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/dequantize.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

using Matrix = std::vector<std::vector<double>>;

OwnedTensor normal(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  const Rng rng{seed, 3};
  OwnedTensor t({{rows, columns}, DType::f32});
  for (std::int64_t i = 0; i < rows * columns; ++i)
    t.tensor.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  return t;
}

/// Rows of inputs that depend on each other and have different sizes; input 5 is always zero.
OwnedTensor inputs(std::int64_t rows, std::int64_t k) {
  auto x = normal(rows, k, 8);
  auto* v = x.tensor.ptr<float>();
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < k; ++i) {
      if (i > 0) v[r * k + i] = 0.8f * v[r * k + i - 1] + 0.6f * v[r * k + i];
      if (i % 7 == 3) v[r * k + i] *= 4;
    }
  for (std::int64_t r = 0; r < rows; ++r) v[r * k + 5] = 0;
  return x;
}

InputMoments moments_of(Pool& pool, const View& x) {
  Stream s(pool);
  InputMoments m(x[-1]);
  m.add(s, x);
  return m;
}

/// Multiples of a step.
struct Steps final : Rounder {
  explicit Steps(float size) : step(size) {}
  float round(std::int64_t, std::int64_t, float v) override { return step * std::nearbyint(v / step); }
  float step;
};

Matrix inverse(Matrix a) {
  const auto n = a.size();
  Matrix b(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) b[i][i] = 1;
  for (std::size_t c = 0; c < n; ++c) {  // Gauss and Jordan, for positive definite matrices
    const double by = 1 / a[c][c];
    for (std::size_t j = 0; j < n; ++j) a[c][j] *= by, b[c][j] *= by;
    for (std::size_t i = 0; i < n; ++i) {
      const double f = i == c ? 0 : a[i][c];
      for (std::size_t j = 0; j < n; ++j) a[i][j] -= f * a[c][j], b[i][j] -= f * b[c][j];
    }
  }
  return b;
}

/// The update of "GPTQ" as it is written, equation by equation: after an input is rounded, the others move by the error
/// times a column of the inverse, from which the input is then eliminated.
Matrix by_the_paper(const View& w, const InputMoments& m, Rounder& rounder) {
  const auto k = static_cast<std::size_t>(w[1]);
  double trace = 0;
  for (std::int64_t i = 0; i < w[1]; ++i) trace += m.at(i, i);
  std::vector<std::size_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](std::size_t i) { return m.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)); });
  std::ranges::reverse(order);
  Matrix h(k, std::vector<double>(k));
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = 0; j < k; ++j)
      h[i][j] = m.at(static_cast<std::int64_t>(std::max(i, j)), static_cast<std::int64_t>(std::min(i, j))) +
                (i == j ? kDamping * trace / static_cast<double>(k) : 0);
  Matrix rows(static_cast<std::size_t>(w[0]), std::vector<double>(k));
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t i = 0; i < k; ++i) rows[r][i] = w.ptr<float>()[r * k + i];
  Matrix inv = inverse(h);
  for (const auto q : order) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double value =
          rounder.round(static_cast<std::int64_t>(r), static_cast<std::int64_t>(q), static_cast<float>(rows[r][q]));
      const double error = (rows[r][q] - value) / inv[q][q];
      for (std::size_t j = 0; j < k; ++j) rows[r][j] -= error * inv[q][j];
      rows[r][q] = value;
    }
    const auto column = inv;
    for (std::size_t i = 0; i < k; ++i)
      for (std::size_t j = 0; j < k; ++j) inv[i][j] -= column[i][q] * column[q][j] / column[q][q];
    for (std::size_t i = 0; i < k; ++i) inv[i][q] = inv[q][i] = 0;  // it moves no more
    inv[q][q] = 1;
  }
  return rows;
}

double output_error(const View& w, const View& values, const InputMoments& m) {
  double sum = 0;
  const auto k = w[1];
  for (std::int64_t r = 0; r < w[0]; ++r)
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        const auto error = [&](std::int64_t c) {
          return static_cast<double>(w.ptr<float>()[r * k + c]) - static_cast<double>(values.ptr<float>()[r * k + c]);
        };
        sum += error(i) * m.at(i, j) * error(j);
      }
  return sum;
}

nn::Codec::Parts<View> views(const nn::Codec::Parts<OwnedTensor>& parts) {
  nn::Codec::Parts<View> all;
  for (std::size_t i = 0; i < parts.size(); ++i) all[i] = parts[i].tensor;
  return all;
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(input_moments, are_the_mean_of_products) {
  Pool one(1), two(2);
  const auto x = inputs(37, 21);
  const OwnedTensor rounded({{37, 21}, DType::bf16});
  convert_elements(rounded.tensor, x.tensor);
  OwnedTensor again({{37, 21}, DType::f32});
  convert_elements(again.tensor, rounded.tensor);
  Stream s(two);
  InputMoments m(21);
  EXPECT_EQ(m.at(3, 4), 0);
  m.add(s, rounded.tensor);
  m.add(s, View(x.tensor.data(), {{2, 5, 21}, DType::f32}));  // any leading dims
  EXPECT_EQ(m.rows(), 47);
  for (std::int64_t i = 0; i < 21; ++i)
    for (std::int64_t j = 0; j < 21; ++j) {
      double sum = 0, size = 0;
      const auto add = [&](const float* row) {
        const double p = static_cast<double>(row[i]) * static_cast<double>(row[j]);
        sum += p, size += std::fabs(p);
      };
      for (int r = 0; r < 37; ++r) add(again.tensor.ptr<float>() + r * 21);
      for (int r = 0; r < 10; ++r) add(x.tensor.ptr<float>() + r * 21);
      EXPECT_NEAR(m.at(i, j), sum / 47, 47 * 0x1p-24 * size / 47) << i << ' ' << j;
    }
  EXPECT_EQ(m.squares()[7], static_cast<float>(m.at(7, 7)));
  EXPECT_EQ(moments_of(one, x.tensor).at(2, 9), moments_of(two, x.tensor).at(2, 9));
  EXPECT_NE(message([&] { m.add(s, View(x.tensor.data(), {{3, 20}, DType::f32})); }).find("rows of 21"),
            std::string::npos);
}

TEST(compensate, is_the_update_of_the_paper) {
  Pool pool(2);
  for (const std::int64_t k : {1, 40, 131}) {
    const auto w = normal(19, k, 5), x = inputs(64, std::max<std::int64_t>(k, 6));
    const OwnedTensor part({{64, k}, DType::f32});
    for (std::int64_t r = 0; r < 64; ++r)
      std::copy_n(x.tensor.ptr<float>() + r * x.tensor[1], k, part.tensor.ptr<float>() + r * k);
    const auto m = moments_of(pool, part.tensor);
    Steps steps(0.5f);
    const auto values = compensate(pool, FloatRows(w.tensor, false, "w"), m, steps);
    const auto want = by_the_paper(w.tensor, m, steps);
    std::int64_t moved = 0;
    for (std::int64_t i = 0; i < 19 * k; ++i) {
      ASSERT_EQ(values.tensor.ptr<float>()[i], want[static_cast<std::size_t>(i / k)][static_cast<std::size_t>(i % k)])
          << k << ": " << i;
      moved += values.tensor.ptr<float>()[i] != steps.round(0, 0, w.tensor.ptr<float>()[i]);
    }
    EXPECT_GE(moved, k > 1 ? k : 0) << "as if nothing were compensated";
  }
}

TEST(compensate, does_not_depend_on_threads_or_layout) {
  Pool one(1), two(2);
  const auto w = normal(45, 70, 5), x = inputs(99, 70);
  OwnedTensor turned({{70, 45}, DType::f32});
  for (int r = 0; r < 45; ++r)
    for (int i = 0; i < 70; ++i) turned.tensor.ptr<float>()[i * 45 + r] = w.tensor.ptr<float>()[r * 70 + i];
  Steps steps(0.25f);
  const auto m = moments_of(one, x.tensor);
  const auto a = compensate(one, FloatRows(w.tensor, false, "w"), m, steps),
             b = compensate(two, FloatRows(w.tensor, false, "w"), m, steps),
             c = compensate(two, FloatRows(turned.tensor, true, "w"), m, steps);
  EXPECT_EQ(std::memcmp(a.tensor.data(), b.tensor.data(), static_cast<std::size_t>(a.tensor.bytes())), 0);
  EXPECT_EQ(std::memcmp(a.tensor.data(), c.tensor.data(), static_cast<std::size_t>(a.tensor.bytes())), 0);
}

/// Inputs that never differ from zero, or a text of one token: the damping keeps the factor positive.
TEST(compensate, takes_moments_of_low_rank) {
  Pool pool(2);
  const auto w = normal(3, 66, 5);
  Steps steps(0.25f);
  const auto none = compensate(pool, FloatRows(w.tensor, false, "w"), InputMoments(66), steps);
  for (int i = 0; i < 3 * 66; ++i)
    EXPECT_EQ(none.tensor.ptr<float>()[i], steps.round(0, 0, w.tensor.ptr<float>()[i])) << i;
  const auto x = inputs(1, 66);
  const auto values = compensate(pool, FloatRows(w.tensor, false, "w"), moments_of(pool, x.tensor), steps);
  for (int i = 0; i < 3 * 66; ++i) EXPECT_TRUE(std::isfinite(values.tensor.ptr<float>()[i]));
}

TEST(compensate, says_what_is_wrong) {
  Pool pool(2);
  auto w = normal(4, 32, 5);
  Steps steps(1);
  EXPECT_NE(message([&] {
              compensate(pool, FloatRows(w.tensor, false, "a.weight"), InputMoments(33), steps);
            }).find("a.weight: it has 32 inputs, the moments are those of 33"),
            std::string::npos);
  auto x = inputs(9, 32);
  x.tensor.ptr<float>()[40] = std::numeric_limits<float>::infinity();
  const auto bad = moments_of(pool, x.tensor);
  EXPECT_NE(message([&] {
              compensate(pool, FloatRows(w.tensor, false, "a.weight"), bad, steps);
            }).find("a.weight: its inputs on the calibration text are NaN or infinite"),
            std::string::npos);
  w.tensor.ptr<float>()[33] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message([&] {
              compensate(pool, FloatRows(w.tensor, false, "a.weight"), InputMoments(32), steps);
            }).find("a.weight: weight [1, 1]"),
            std::string::npos);
}

struct Format {
  const Compensation* codec;
  nn::CodecOptions options;
};
std::vector<Format> formats() {
  std::vector<Format> all;
  for (const auto* c : codecs()) {
    const auto* rounding = compensation_of(*c);
    if (!rounding) continue;
    all.push_back({rounding, {}});
    if (!c->groups.empty()) all.push_back({rounding, {.group = 32, .symmetric = false}});
    if (c->groups.empty() && c->specs(1, 256, {.nested = true}) != c->specs(1, 256, {}))
      all.push_back({rounding, {.nested = true}});
  }
  return all;
}

/// The values of a matrix as its rounder has them.
std::vector<float> values_of(Pool& pool, const Compensation& c, const Compensation::Parts& parts, std::int64_t n) {
  const auto values = dequantize(pool, *c.codec, views(parts), n);
  const auto k = values.tensor[1];
  std::vector<float> all(values.tensor.ptr<float>(), values.tensor.ptr<float>() + n * k);
  if (!c.rotate) return all;
  for (std::int64_t r = 0; r < n; ++r) {
    std::vector<double> row(all.begin() + r * k, all.begin() + (r + 1) * k);
    c.rotate(row.data(), k);
    std::ranges::copy(row, all.begin() + r * k);
  }
  return all;
}

/// Exact, but for the roundings of rotations.
void expect_equal(const std::vector<float>& a, const std::vector<float>& b, const Compensation& c) {
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], c.rotate ? 64 * 0x1p-24 : 0) << c.codec->name << ' ' << i;
}

TEST(rounder, stores_the_values_that_it_returns) {
  Pool pool(2);
  const auto w = normal(21, 256, 6);
  for (const auto& [codec, options] : formats()) {
    nn::RoundingError error;
    const auto parts = codec->quantize(pool, {.w = w.tensor}, options, error);
    const auto rounder = codec->rounder(parts, options);
    const auto before = values_of(pool, *codec, parts, 21);
    std::vector<float> same, values;
    for (std::int64_t i = 0; i < 21 * 256; ++i)
      same.push_back(rounder->round(i / 256, i % 256, before[static_cast<std::size_t>(i)]));
    expect_equal(same, before, *codec);
    const Rng rng{4, 4};
    for (std::int64_t i = 0; i < 21 * 256; ++i)
      values.push_back(
          rounder->round(i / 256, i % 256, static_cast<float>(3 * rng.normal(static_cast<std::uint64_t>(i)))));
    expect_equal(values_of(pool, *codec, parts, 21), values, *codec);
    EXPECT_NE(values, same) << codec->codec->name;
  }
}

TEST(compensate, lowers_the_error_of_outputs_in_every_format) {
  Pool pool(2);
  const auto w = normal(33, 256, 6), x = inputs(700, 256);
  const auto m = moments_of(pool, x.tensor);
  for (const auto& [codec, options] : formats()) {
    nn::RoundingError error;
    const auto plain = codec->quantize(pool, {.w = w.tensor}, options, error);
    const double of_plain = output_error(w.tensor, dequantize(pool, *codec->codec, views(plain), 33).tensor, m);
    for (const bool searched : {false, true}) {
      const auto made = quantize_compensated(pool, *codec, {.w = w.tensor}, m, options, searched, error);
      const auto values = dequantize(pool, *codec->codec, views(made.parts), 33);
      EXPECT_LT(output_error(w.tensor, values.tensor, m), 0.6 * of_plain) << codec->codec->name << ' ' << searched;
      for (std::int64_t i = 0; i < w.tensor.size(); ++i)
        ASSERT_NEAR(made.values.tensor.ptr<float>()[i], values.tensor.ptr<float>()[i], codec->rotate ? 64 * 0x1p-24 : 0)
            << codec->codec->name;
    }
  }
}

/// Scales that are searched for with an importance have less of the error that it counts, and only of that.
TEST(quantize, counts_errors_by_importance) {
  Pool pool(2);
  const auto w = normal(16, 128, 9);
  std::vector<float> importance(128, 0.01f);
  for (std::size_t i = 0; i < 128; i += 9) importance[i] = 1;
  for (const char* name : {"int4", "nf4", "fp4"}) {
    const auto& codec = *compensation_of(*find_codec(name));
    const auto weighted = [&](std::span<const float> by, double& all) {
      nn::RoundingError error;
      const auto parts = codec.quantize(pool, {.w = w.tensor, .importance = by}, {}, error);
      const auto values = dequantize(pool, *codec.codec, views(parts), 16);
      double sum = 0;
      for (std::size_t i = 0; i < 16 * 128; ++i) {
        const double d = static_cast<double>(values.tensor.ptr<float>()[i] - w.tensor.ptr<float>()[i]);
        sum += d * d * static_cast<double>(importance[i % 128]), all += d * d;
      }
      return sum;
    };
    double plain = 0, by_importance = 0;
    EXPECT_LT(weighted(importance, by_importance), 0.97 * weighted({}, plain)) << name;
    EXPECT_GT(by_importance, (codec.codec->name == "int4" ? 1 : 0) * plain) << name;
  }
  nn::RoundingError error;
  const auto few = std::span(importance).first(64);
  EXPECT_NE(message([&] {
              compensation_of(int4_codec)->quantize(pool, {.w = w.tensor, .name = "w", .importance = few}, {}, error);
            }).find("w: expected the importance of 128 inputs, got 64"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::quant
