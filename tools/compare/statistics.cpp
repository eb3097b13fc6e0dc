#include "tools/compare/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hpcdl::lab::compare {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n == 0 ? 0 : (values[n / 2] + values[(n - 1) / 2]) / 2;
}

MedianInterval median_interval(int n, double confidence) {
  if (n <= 0) return {};
  // P(exactly i of n values below the median), summed from both ends: the probability outside of the interval.
  const auto probability = [n](int i) {
    return std::exp(std::lgamma(n + 1.0) - std::lgamma(i + 1.0) - std::lgamma(n - i + 1.0) - n * std::log(2.0));
  };
  MedianInterval best{0, n - 1, 1 - 2 * probability(0)};
  double outside = 2 * probability(0);
  for (int k = 1; k < n - 1 - k; ++k) {
    outside += 2 * probability(k);
    if (1 - outside < confidence) break;
    best = {k, n - 1 - k, 1 - outside};
  }
  best.coverage = std::max(best.coverage, 0.0);
  return best;
}

double Spread::half_width() const {
  return median > 0 ? (high - low) / 2 / median : std::numeric_limits<double>::infinity();
}

Spread spread(std::vector<double> values, double confidence) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto i = median_interval(static_cast<int>(values.size()), confidence);
  const auto at = [&](int place) { return values[static_cast<std::size_t>(place)]; };
  return {median(values), values.front(), values.back(), at(i.lower), at(i.upper), i.coverage};
}

namespace {

constexpr int kExact =
    60;  // up to this number of values the distribution is enumerated; beyond, it is normal to three digits

/// P(rank sum <= s) of n signed ranks, for every s: each rank counts with probability 1/2.
std::vector<double> signed_rank_distribution(int n) {
  std::vector<double> p(static_cast<std::size_t>(n * (n + 1) / 2) + 1);
  p[0] = 1;
  std::size_t top = 0;
  for (int rank = 1; rank <= n; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    top += r;
    for (std::size_t s = top + 1; s-- > 0;) p[s] = (p[s] + (s >= r ? p[s - r] : 0)) / 2;
  }
  for (std::size_t s = 1; s < p.size(); ++s) p[s] += p[s - 1];
  return p;
}

/// P(rank sum < place), by the normal distribution with a correction for continuity.
double below(std::int64_t place, int n) {
  const double m = n, mean = m * (m + 1) / 4, deviation = std::sqrt(m * (m + 1) * (2 * m + 1) / 24);
  return std::erfc(-(static_cast<double>(place) - 0.5 - mean) / deviation / std::sqrt(2.0)) / 2;
}

}  // namespace

SignedRankInterval signed_rank_interval(int n, double confidence) {
  if (n <= 0) return {};
  const double outside = (1 - confidence) / 2;
  const auto exact = n <= kExact ? signed_rank_distribution(n) : std::vector<double>();
  const auto missed = [&](std::int64_t place) {
    return exact.empty() ? below(place, n) : exact[static_cast<std::size_t>(place - 1)];
  };
  std::int64_t low = 1,
               high = std::int64_t{n} * (n + 1) / 4;  // the last position whose error probability is small enough
  while (low < high) {
    const auto middle = (low + high + 1) / 2;
    if (missed(middle) <= outside) low = middle;
    else high = middle - 1;
  }
  return {low, std::max(0.0, 1 - 2 * missed(low))};
}

Spread ratios_spread(std::vector<double> ratios, double confidence) {
  if (ratios.empty()) return {};
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  Spread s{.min = *least, .max = *most};
  for (auto& r : ratios) r = std::log(r);
  std::vector<double> means;
  means.reserve(ratios.size() * (ratios.size() + 1) / 2);
  for (std::size_t i = 0; i < ratios.size(); ++i)
    for (std::size_t k = i; k < ratios.size(); ++k) means.push_back((ratios[i] + ratios[k]) / 2);
  const auto at = [&](std::int64_t place) {
    std::nth_element(means.begin(), means.begin() + place, means.end());
    return means[static_cast<std::size_t>(place)];
  };
  const auto n = static_cast<std::int64_t>(means.size());
  const auto interval = signed_rank_interval(static_cast<int>(ratios.size()), confidence);
  s.median = std::exp((at((n - 1) / 2) + at(n / 2)) / 2);
  s.low = std::exp(at(interval.place - 1)), s.high = std::exp(at(n - interval.place));
  s.coverage = interval.coverage;
  return s;
}

std::vector<double> paired_ratios(const std::vector<double>& top, const std::vector<double>& bottom) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(top.size(), bottom.size()); ++i) out.push_back(top[i] / bottom[i]);
  return out;
}

}  // namespace hpcdl::lab::compare
