// The errors of compressed matrices: no worse than their optimum where it has a formula, and none where the matrix has
// the structure.

#include "hpcdl/quant/factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

using nn::Method;
using nn::Structure;

OwnedTensor normal(const Shape& shape, std::uint64_t seed) {
  OwnedTensor t({shape, DType::f32});
  const Rng rng{seed, 3};
  for (std::int64_t i = 0; i < t.tensor.size(); ++i)
    t.tensor.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  return t;
}

WeighedMatrix of(const OwnedTensor& w) { return {w.tensor.ptr<float>(), w.tensor[0], w.tensor[1], w.tensor[1]}; }

double relative(const OwnedTensor& w, const OwnedTensor& other) {
  double error = 0, all = 0;
  for (std::int64_t i = 0; i < w.tensor.size(); ++i) {
    const double x = static_cast<double>(w.tensor.ptr<float>()[i]);
    error += std::pow(x - static_cast<double>(other.tensor.ptr<float>()[i]), 2), all += x * x;
  }
  return std::sqrt(error / all);
}

double error_of(Pool& pool, const OwnedTensor& w, const Structure& s) {
  return relative(w, expand(pool, factorise(pool, of(w), s), s));
}

/// Factors of a random matrix of the structure.
Factors drawn(std::int64_t out, std::int64_t in, const Structure& s) {
  const auto B = s.blocks, r = s.rank;
  const auto width = s.method == Method::monarch ? B * r : r;
  Factors f;
  f.input = normal(s.method == Method::svd ? Shape{r, in} : Shape{B, width, in / B}, 1);
  f.output = normal(s.method == Method::svd ? Shape{out, r} : Shape{B, out / B, width}, 2);
  if (s.method == Method::blast) f.scale = normal({r, B, B}, 4);
  return f;
}

// The squared error is the sum of the squares of the singular values that are left out: of the matrix, or of its parts.
TEST(Factors, LoseWhatTheSingularValuesSay) {
  Pool pool(2);
  const auto w = normal({24, 36}, 5);
  const auto tail = [&](std::int64_t row, std::int64_t step, std::int64_t column, std::int64_t rows,
                        std::int64_t columns, std::int64_t rank) {
    std::vector<double> gram(static_cast<std::size_t>(rows * rows));
    const auto at = [&](std::int64_t i, std::int64_t c) {
      return static_cast<double>(w.tensor.ptr<float>()[(row + i * step) * 36 + column + c]);
    };
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < rows; ++j)
        for (std::int64_t c = 0; c < columns; ++c) gram[static_cast<std::size_t>(i * rows + j)] += at(i, c) * at(j, c);
    double sum = 0;
    const auto values = symmetric_eigen(pool, gram, rows, 0).values;
    for (auto i = static_cast<std::size_t>(rank); i < values.size(); ++i) sum += values[i];
    return sum;
  };
  const double all = tail(0, 1, 0, 24, 36, 0);
  EXPECT_NEAR(error_of(pool, w, {.method = Method::svd, .rank = 7}), std::sqrt(tail(0, 1, 0, 24, 36, 7) / all), 1e-6);
  for (const bool strided : {false, true}) {
    double sum = 0;
    for (std::int64_t i = 0; i < 4; ++i)
      for (std::int64_t j = 0; j < 4; ++j) sum += tail(strided ? i : 6 * i, strided ? 4 : 1, 9 * j, 6, 9, 2);
    EXPECT_NEAR(error_of(pool, w, {.method = Method::monarch, .rank = 2, .blocks = 4, .strided = strided}),
                std::sqrt(sum / all), 1e-6);
  }
}

TEST(Factors, OfAMatrixOfTheStructureAreExact) {
  Pool pool(2);
  for (const auto& s : {Structure{.method = Method::svd, .rank = 9},
                        {.method = Method::monarch, .rank = 3, .blocks = 4},
                        {.method = Method::monarch, .rank = 3, .blocks = 4, .strided = true},
                        {.method = Method::monarch, .rank = 1, .blocks = 8, .strided = true}}) {
    const auto w = expand(pool, drawn(64, 96, s), s);
    EXPECT_LT(error_of(pool, w, s), 1e-5) << nn::method_name(s.method) << " " << s.blocks;
  }
}

// W = P L P^T R with m blocks of m x m: Dao et al., definition 3.1. P takes element i m + j to j m + i.
TEST(Factors, OfASquareMonarchMatrixAreExact) {
  Pool pool(2);
  const std::int64_t m = 8, n = m * m;
  const auto left = normal({m, m, m}, 1), right = normal({m, m, m}, 2);
  const OwnedTensor w({{n, n}, DType::f32});
  for (std::int64_t column = 0; column < n; ++column) {
    std::vector<double> x(static_cast<std::size_t>(n)), y(x);
    x[static_cast<std::size_t>(column)] = 1;
    const auto blocks = [&](const OwnedTensor& f) {
      for (std::int64_t b = 0; b < m; ++b)
        for (std::int64_t i = 0; i < m; ++i) {
          double sum = 0;
          for (std::int64_t j = 0; j < m; ++j)
            sum += static_cast<double>(f.tensor.ptr<float>()[(b * m + i) * m + j]) *
                   x[static_cast<std::size_t>(b * m + j)];
          y[static_cast<std::size_t>(b * m + i)] = sum;
        }
    };
    const auto permute = [&] {
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < m; ++j)
          x[static_cast<std::size_t>(j * m + i)] = y[static_cast<std::size_t>(i * m + j)];
    };
    blocks(right), permute(), blocks(left), permute();
    for (std::int64_t i = 0; i < n; ++i)
      w.tensor.ptr<float>()[i * n + column] = static_cast<float>(x[static_cast<std::size_t>(i)]);
  }
  EXPECT_LT(error_of(pool, w, {.method = Method::monarch, .rank = 1, .blocks = m, .strided = true}), 1e-5);
  EXPECT_GT(error_of(pool, w, {.method = Method::svd, .rank = 2 * m}), 0.1);  // twice as large
}

// Blast starts from the nearest matrix of its rank, and can only be nearer.
TEST(Factors, OfBlastLoseLessThanThoseOfItsRank) {
  Pool pool(2), one(1);
  const auto noise = normal({48, 64}, 8);
  const Structure s{.method = Method::blast, .rank = 8, .blocks = 4};
  EXPECT_LT(error_of(pool, noise, s), 0.97 * error_of(pool, noise, {.method = Method::svd, .rank = 8}));
  // Where the matrix has the structure, it is also nearer than that of any rank of equal size.
  const auto w = expand(pool, drawn(48, 64, s), s);
  const auto numbers = s.rank * nn::numbers_per_rank(Method::blast, 48, 64, 4);
  const auto rank = numbers / nn::numbers_per_rank(Method::svd, 48, 64, 1);
  EXPECT_LT(error_of(pool, w, s), 0.8 * error_of(pool, w, {.method = Method::svd, .rank = rank}));
  EXPECT_EQ(error_of(pool, noise, s), error_of(one, noise, s));
}

TEST(Factors, OfAZeroMatrixAreZero) {
  Pool pool(2);
  const OwnedTensor w({{16, 24}, DType::f32});
  std::memset(w.tensor.data(), 0, static_cast<std::size_t>(w.tensor.bytes()));
  for (const auto& s : {Structure{.method = Method::svd, .rank = 2},
                        {.method = Method::monarch, .rank = 2, .blocks = 4},
                        {.method = Method::blast, .rank = 2, .blocks = 2}}) {
    const auto back = expand(pool, factorise(pool, of(w), s), s);
    for (std::int64_t i = 0; i < w.tensor.size(); ++i) ASSERT_EQ(back.tensor.ptr<float>()[i], 0) << i;
  }
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(StructureFor, SpendsTheRatio) {
  for (const auto method : {Method::svd, Method::monarch, Method::blast})
    for (const double ratio : {0.1, 1.0 / 3, 0.5, 0.9})
      for (const auto& [out, in] :
           {std::pair<std::int64_t, std::int64_t>{4096, 4096}, {11008, 4096}, {4096, 11008}, {96, 50}}) {
        const auto s = structure_for(method, out, in, ratio, {}, "w");
        const auto all = static_cast<double>(out * in);
        const auto cost = static_cast<double>(nn::numbers_per_rank(method, out, in, s.blocks));
        EXPECT_LE(static_cast<double>(s.rank) * cost, ratio * all);
        EXPECT_GT(static_cast<double>(s.rank + 1) * cost, ratio * all);
        EXPECT_EQ(s.blocks, method == Method::svd ? 1 : in == 50 ? 2 : 4);
      }
}

TEST(StructureFor, SaysWhichBlocksFit) {
  const auto with = [](Method m, std::int64_t out, std::int64_t in, double ratio, std::optional<std::int64_t> blocks) {
    return message([&] { structure_for(m, out, in, ratio, blocks, "h.0.up"); });
  };
  EXPECT_NE(with(Method::monarch, 96, 50, 0.5, 4)
                .find("h.0.up: a matrix of 96 x 50 has no 4 equal blocks: --blocks may be 2"),
            std::string::npos);
  EXPECT_NE(with(Method::blast, 17, 50, 0.5, {}).find("use --method svd"), std::string::npos);
  EXPECT_NE(with(Method::monarch, 64, 64, 0.01, 4).find("use a larger ratio, fewer --blocks"), std::string::npos);
  EXPECT_NE(with(Method::svd, 64, 64, 0.01, {}).find("at least 0.0312 of its size"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::quant
