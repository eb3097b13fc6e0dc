// Eigenvectors against their definition, and the directions of a matrix against its singular values.

#include "hpcdl/quant/leading.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "hpcdl/rng.h"

namespace hpcdl::quant {
namespace {

std::vector<double> symmetric(std::int64_t n, std::uint64_t seed) {
  const Rng rng{seed, 1};
  std::vector<double> m(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j)
      m[static_cast<std::size_t>(i * n + j)] = m[static_cast<std::size_t>(j * n + i)] =
          static_cast<double>(rng.normal(static_cast<std::uint64_t>(i * n + j)));
  return m;
}

TEST(SymmetricEigen, SatisfiesItsDefinition) {
  Pool pool(2), one(1);
  for (const std::int64_t n : {1, 2, 3, 7, 16, 65, 200}) {
    const auto m = symmetric(n, 3);
    auto copy = m, again = m;
    const auto e = symmetric_eigen(pool, copy, n, n), same = symmetric_eigen(one, again, n, n);
    EXPECT_EQ(e.vectors, same.vectors) << n;
    double largest = 0;
    for (std::int64_t a = 0; a < n; ++a) {
      const auto* u = e.vectors.data() + a * n;
      if (a > 0) {
        EXPECT_GE(e.values[static_cast<std::size_t>(a - 1)], e.values[static_cast<std::size_t>(a)]);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < n; ++j) sum += m[static_cast<std::size_t>(i * n + j)] * u[j];
        largest = std::max(largest, std::fabs(sum - e.values[static_cast<std::size_t>(a)] * u[i]));
      }
      for (std::int64_t b = 0; b <= a; ++b) {
        double dot = 0;
        for (std::int64_t j = 0; j < n; ++j) dot += u[j] * e.vectors[static_cast<std::size_t>(b * n + j)];
        EXPECT_NEAR(dot, a == b, 1e-12 * static_cast<double>(n)) << n;
      }
    }
    EXPECT_LT(largest, 1e-12 * static_cast<double>(n)) << n;
  }
}

// Equal eigenvalues, zeros, and a matrix that is diagonal already.
TEST(SymmetricEigen, OfDegenerateMatrices) {
  Pool pool(2);
  for (const int kind : {0, 1, 2}) {
    const std::int64_t n = 12;
    std::vector<double> m(static_cast<std::size_t>(n * n));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        m[static_cast<std::size_t>(i * n + j)] = kind == 0   ? 0
                                                 : kind == 1 ? 1
                                                 : i == j    ? static_cast<double>(i % 3)
                                                             : 0;
    auto copy = m;
    const auto e = symmetric_eigen(pool, copy, n, 1);
    EXPECT_NEAR(e.values[0], kind == 0 ? 0 : kind == 1 ? 12 : 2, 1e-12);
    double length = 0;
    for (const double x : e.vectors) length += x * x;
    EXPECT_NEAR(length, 1, 1e-12);
  }
}

struct Drawn {
  std::vector<float> values;
  WeighedMatrix w;
  Drawn(std::int64_t rows, std::int64_t columns, std::uint64_t seed)
      : values(static_cast<std::size_t>(rows * columns)) {
    const Rng rng{seed, 2};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.normal(i));
    w = {values.data(), rows, columns, columns};
  }
};

/// |W|^2 - |U W|^2, which is the squared error of U^T U W, and |W|^2.
std::pair<double, double> lost(const WeighedMatrix& w, const std::vector<double>& u) {
  double all = 0, kept = 0;
  std::vector<double> row(static_cast<std::size_t>(w.columns));
  for (std::int64_t i = 0; i < w.rows; ++i)
    for (std::int64_t j = 0; j < w.columns; ++j) all += std::pow(static_cast<double>(w.values[i * w.stride + j]), 2);
  for (std::size_t a = 0; a < u.size(); a += static_cast<std::size_t>(w.rows)) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::int64_t i = 0; i < w.rows; ++i)
      for (std::int64_t j = 0; j < w.columns; ++j)
        row[static_cast<std::size_t>(j)] +=
            u[a + static_cast<std::size_t>(i)] * static_cast<double>(w.values[i * w.stride + j]);
    for (const double x : row) kept += x * x;
  }
  return {all - kept, all};
}

/// The eigenvalues of W W^T or W^T W: squares of the singular values.
std::vector<double> squares(Pool& pool, const WeighedMatrix& w) {
  const auto n = std::min(w.rows, w.columns), k = std::max(w.rows, w.columns);
  std::vector<double> gram(static_cast<std::size_t>(n * n));
  const auto at = [&](std::int64_t i, std::int64_t c) {
    return static_cast<double>(n == w.rows ? w.values[i * w.stride + c] : w.values[c * w.stride + i]);
  };
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < k; ++c) sum += at(i, c) * at(j, c);
      gram[static_cast<std::size_t>(i * n + j)] = gram[static_cast<std::size_t>(j * n + i)] = sum;
    }
  return symmetric_eigen(pool, gram, n, 0).values;
}

TEST(LeadingOutputs, LoseTheTailOfTheSingularValues) {
  Pool pool(2);
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{40, 70}, {70, 40}, {33, 33}, {1, 5}, {5, 1}}) {
    const Drawn d(rows, columns, 5);
    const auto values = squares(pool, d.w);
    for (const std::int64_t r : {std::int64_t{1}, (std::ssize(values) + 1) / 2, std::ssize(values)}) {
      double tail = 0;
      for (auto i = static_cast<std::size_t>(r); i < values.size(); ++i) tail += values[i];
      const auto [squared, all] = lost(d.w, leading_outputs(pool, d.w, r));
      EXPECT_NEAR(squared, tail, 1e-9 * all) << rows << " x " << columns << ", rank " << r;
    }
  }
}

// Larger matrices are not decomposed as a whole. Normal numbers are the hardest case: no singular value is far from the
// next one.
TEST(LeadingOutputs, OfLargeMatricesLoseLittleMore) {
  Pool pool(2), one(1);
  const Drawn d(520, 560, 7);
  const auto values = squares(pool, d.w);
  const std::int64_t r = 50;
  double tail = 0;
  for (auto i = static_cast<std::size_t>(r); i < values.size(); ++i) tail += values[i];
  const auto u = leading_outputs(pool, d.w, r);
  const auto [squared, all] = lost(d.w, u);
  EXPECT_GE(squared, tail - 1e-9 * all);
  EXPECT_LE(std::sqrt(squared), 1.002 * std::sqrt(tail));
  EXPECT_EQ(u, leading_outputs(one, d.w, r));
  std::vector<float> turned(d.values.size());
  for (std::int64_t i = 0; i < d.w.rows; ++i)
    for (std::int64_t j = 0; j < d.w.columns; ++j)
      turned[static_cast<std::size_t>(j * d.w.rows + i)] = d.values[static_cast<std::size_t>(i * d.w.columns + j)];
  const WeighedMatrix tall{turned.data(), d.w.columns, d.w.rows, d.w.rows};
  EXPECT_LE(std::sqrt(lost(tall, leading_outputs(pool, tall, r)).first), 1.002 * std::sqrt(tail));
}

TEST(LeadingOutputs, OfAMatrixOfLowRankLoseNothing) {
  Pool pool(2);
  const Drawn left(50, 6, 1), right(6, 80, 2);
  std::vector<float> values(50 * 80);
  for (std::size_t i = 0; i < 50; ++i)
    for (std::size_t k = 0; k < 6; ++k)
      for (std::size_t j = 0; j < 80; ++j) values[i * 80 + j] += left.values[i * 6 + k] * right.values[k * 80 + j];
  const WeighedMatrix w{values.data(), 50, 80, 80};
  for (const std::int64_t r : {6, 9}) {
    const auto [squared, all] = lost(w, leading_outputs(pool, w, r));
    EXPECT_LT(squared, 1e-12 * all);
  }
}

// With moments, the directions are those of W x, and lose less of it than the directions of W.
TEST(LeadingOutputs, WeighTheInputs) {
  Pool pool(2);
  const std::int64_t n = 30, r = 5;
  const Drawn d(24, n, 9);
  std::vector<double> moments(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) moments[static_cast<std::size_t>(i * n + i)] = i < 6 ? 400 : 1;
  std::vector<float> scaled(d.values);
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= i % 30 < 6 ? 20.0f : 1.0f;
  const WeighedMatrix seen{scaled.data(), 24, n, n};
  WeighedMatrix w = d.w;
  const auto plain = lost(seen, leading_outputs(pool, w, r)).first;
  w.moments = moments.data();
  const auto weighed = lost(seen, leading_outputs(pool, w, r)).first;
  EXPECT_NEAR(weighed, lost(seen, leading_outputs(pool, seen, r)).first, 1e-6 * weighed);
  EXPECT_LT(weighed, 0.9 * plain);
}

}  // namespace
}  // namespace hpcdl::quant
