#include "tools/compare/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/rng.h"

namespace hpcdl::lab::compare {
namespace {

TEST(statistics, median_of_odd_even_and_nothing) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({}), 0);
}

// The positions and coverages in tables of the sign test.
TEST(statistics, interval_of_the_median_is_the_binomial_one) {
  const auto check = [](int n, int lower, double coverage) {
    const auto i = median_interval(n, 0.95);
    EXPECT_EQ(i.lower, lower) << n;
    EXPECT_EQ(i.upper, n - 1 - lower) << n;
    EXPECT_NEAR(i.coverage, coverage, 5e-5) << n;
  };
  check(6, 0, 0.96875);
  check(7, 0, 0.98438);
  check(9, 1, 0.96094);
  check(15, 3, 0.96484);
  check(20, 5, 0.95861);
  check(30, 9, 0.95723);
  check(100, 39, 0.96480);
  EXPECT_NEAR(median_interval(999, 0.95).lower, 999 / 2.0 - 1.96 * std::sqrt(999.0) / 2, 1.0)
      << "the normal approximation";
}

TEST(statistics, a_sample_that_is_too_small_says_so) {
  EXPECT_EQ(median_interval(0, 0.95).coverage, 0);
  EXPECT_EQ(median_interval(1, 0.95).coverage, 0);
  EXPECT_EQ(median_interval(3, 0.95).lower, 0);
  EXPECT_EQ(median_interval(3, 0.95).upper, 2);
  EXPECT_NEAR(median_interval(3, 0.95).coverage, 0.75, 1e-12);
}

// 4000 samples of 15 from a skewed distribution with a known median: the interval does not miss more often than it
// promises.
TEST(statistics, the_interval_covers_as_often_as_it_says) {
  const Rng rng{11, 0};
  const int trials = 4000, n = 15;
  int covered = 0;
  for (int t = 0; t < trials; ++t) {
    std::vector<double> sample;
    for (int i = 0; i < n; ++i)
      sample.push_back(-std::log1p(-static_cast<double>(rng.uniform(static_cast<std::uint64_t>(t * n + i)))));
    const Spread s = spread(sample);
    covered += s.low <= std::log(2.0) && std::log(2.0) <= s.high;
  }
  const double expected = median_interval(n, 0.95).coverage, sigma = std::sqrt(expected * (1 - expected) / trials);
  EXPECT_NEAR(static_cast<double>(covered) / trials, expected, 4 * sigma);
}

// Positions and coverages in tables of the signed-rank test.
TEST(statistics, interval_of_ratios_is_that_of_the_signed_rank_test) {
  const auto check = [](int n, std::int64_t place, double coverage) {
    const auto i = signed_rank_interval(n, 0.95);
    EXPECT_EQ(i.place, place) << n;
    EXPECT_NEAR(i.coverage, coverage, 5e-4) << n;
  };
  check(6, 1, 1 - 2.0 / 64);
  check(7, 3, 1 - 6.0 / 128);
  check(10, 9, 0.951);
  check(20, 53, 0.952);
  EXPECT_EQ(signed_rank_interval(3, 0.95).coverage, 0.75) << "too few values for a higher coverage";
  const auto exact = signed_rank_interval(60, 0.95), normal = signed_rank_interval(61, 0.95);
  EXPECT_NEAR(static_cast<double>(normal.place - exact.place), 23, 6) << "no jump where exact counting ends";
  EXPECT_NEAR(normal.coverage, exact.coverage, 2e-3);
}

TEST(statistics, the_middle_of_ratios_is_the_median_of_the_means_of_pairs) {
  const Spread s = ratios_spread({1, 2, 8});  // means of the exponents of 2: 0 .5 1 1.5 2 3
  EXPECT_NEAR(s.median, std::pow(2, 1.25), 1e-12);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 8);
  EXPECT_NEAR(s.low, 1, 1e-12);
  EXPECT_NEAR(s.high, 8, 1e-12);
  EXPECT_NEAR(ratios_spread({1, 1, 1, 1, 1, 1, 1, 100, 1e-3, 1e6}).median, 1, 1e-12);
  EXPECT_TRUE(std::isinf(ratios_spread({}).half_width()));
}

TEST(statistics, spread_and_ratios) {
  const Spread s = spread({5, 1, 4, 2, 3, 6, 7, 8, 9});
  EXPECT_EQ(s.median, 5);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 9);
  EXPECT_EQ(s.low, 2);
  EXPECT_EQ(s.high, 8);
  EXPECT_DOUBLE_EQ(s.half_width(), 3.0 / 5);
  EXPECT_TRUE(std::isinf(spread({}).half_width()));
  EXPECT_EQ(paired_ratios({2, 6, 8}, {1, 2}), (std::vector<double>{2, 3}));
}

}  // namespace
}  // namespace hpcdl::lab::compare
