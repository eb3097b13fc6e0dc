#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "hpcdl/nn/codec.h"
#include "hpcdl/quant/float_rows.h"

namespace hpcdl::quant {

/// What quantisation changed: value(row, column) is what a weight has become. Sums go by rows, whatever the number of threads.
template <class Value> nn::RoundingError rounding_error(Pool& pool, const FloatRows& rows, Value value) {
  std::vector<nn::RoundingError> of(static_cast<std::size_t>(rows.n()));
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    auto& sum = of[static_cast<std::size_t>(r)];
    for (std::int64_t k = 0; k < rows.k(); ++k) {
      const double difference = static_cast<double>(x[k]) - static_cast<double>(value(r, k));
      sum.squared += difference * difference, sum.origin += static_cast<double>(x[k]) * x[k];
      sum.largest = std::max(sum.largest, std::fabs(difference));
    }
  });
  nn::RoundingError all{.count = rows.n() * rows.k()};
  for (const auto& sum : of) {
    all.squared += sum.squared, all.origin += sum.origin;
    all.largest = std::max(all.largest, sum.largest);
  }
  return all;
}

}  // namespace hpcdl::quant
