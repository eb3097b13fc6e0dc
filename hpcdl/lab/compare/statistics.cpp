#include "hpcdl/lab/compare/statistics.h"

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
  // P(exactly i of n values below the median), summed from both ends: what the interval leaves out.
  const auto probability = [n](int i) { return std::exp(std::lgamma(n + 1.0) - std::lgamma(i + 1.0) - std::lgamma(n - i + 1.0) - n * std::log(2.0)); };
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

std::vector<double> paired_ratios(const std::vector<double>& top, const std::vector<double>& bottom) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(top.size(), bottom.size()); ++i) out.push_back(top[i] / bottom[i]);
  return out;
}

}  // namespace hpcdl::lab::compare
