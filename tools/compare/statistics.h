#pragma once
// Statistics of a few noisy times: medians, and intervals that assume nothing about how the noise is
// distributed.

#include <cstdint>
#include <utility>
#include <vector>

namespace hpcdl::lab::compare {

/// 0 for an empty list.
double median(std::vector<double> values);

/// 0-based positions in a sorted sample that bracket the true median, and the probability that they do.
struct MedianInterval {
  int lower = 0, upper = 0;
  double coverage = 0;
};

/// The narrowest symmetric pair of order statistics of n values that covers the true median with at least `confidence`;
/// the whole range if n is too small for that (below 6 at 95 %), with its actual coverage. Exact for any continuous
/// distribution: the values below the median are Binomial(n, 1/2) many
/// (David and Nagaraja, "Order Statistics", 3rd edition, 2003, section 7.1).
MedianInterval median_interval(int n, double confidence);

/// A sample in six numbers. [low, high] holds the true median with probability `coverage`. For ratios_spread(),
/// `median` is that of the means of all pairs.
struct Spread {
  double median = 0, min = 0, max = 0, low = 0, high = 0, coverage = 0;
  /// Half of the interval, relative to the median; infinite for a sample without a positive median.
  double half_width() const;
};

Spread spread(std::vector<double> values, double confidence = 0.95);

/// The same for ratios, by the estimator of Hodges and Lehmann over their logarithms: the median of the means of all
/// pairs, including each value with itself, and the interval of the signed-rank test of Wilcoxon
/// (Hollander, Wolfe and Chicken, "Nonparametric statistical methods", 3rd edition, 2014, sections 3.2 and 3.3). With
/// normal noise it needs two thirds of the rounds that a median of ratios needs, and it tolerates three of ten rounds
/// that are wrong by any amount. It assumes that swapping the two sides inverts the noise of a round, which holds
/// if both run on the same machine; about the noise itself it assumes nothing.
Spread ratios_spread(std::vector<double> ratios, double confidence = 0.95);

/// 1-based position from either end of the sorted means of all pairs of n values, the bounds of the interval, and its
/// coverage.
struct SignedRankInterval {
  std::int64_t place = 1;
  double coverage = 0;
};
SignedRankInterval signed_rank_interval(int n, double confidence);

/// top[i] / bottom[i]: slow drift affects both and cancels.
std::vector<double> paired_ratios(const std::vector<double>& top, const std::vector<double>& bottom);

}  // namespace hpcdl::lab::compare
