#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/moe_route/moe_route.h"

namespace hpcdl::contract {

/// Weights and experts.
inline void moe_route_reference(Outputs out, Inputs in, const MoeRoute::Args& a) {
  const auto count = in[0].dim(-1), rows = in[0].size() / count;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* row = in[0].v.data() + r * count;
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) { return row[x] > row[y]; });
    double sum = 0;
    for (std::int64_t i = 0; i < (a.sum_to_one ? a.count : count); ++i)
      sum += std::exp(row[order[static_cast<std::size_t>(i)]] - row[order[0]]);
    for (std::int64_t i = 0; i < a.count; ++i) {
      const auto expert = order[static_cast<std::size_t>(i)];
      const double weight = std::exp(row[expert] - row[order[0]]) / sum;
      out[0].set(r * a.count + i, weight, weight);
      out[1].set(r * a.count + i, static_cast<double>(expert), 0);
    }
  }
}

inline void moe_route_cases(auto& to) {
  to.add("moe_route", "RxE", {"scores RE master"}, {{8192, 128}, {64, 128}},
         [](const auto& v) { return moe_route(v[0], {.count = 2})[0]; });
}

}  // namespace hpcdl::contract
