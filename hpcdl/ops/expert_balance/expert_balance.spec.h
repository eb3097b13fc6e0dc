#pragma once

#include <algorithm>
#include <cmath>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/expert_balance/expert_balance.h"

namespace hpcdl::contract {

/// Probabilities and counts.
inline void expert_load_reference(Outputs out, Inputs in, const ExpertLoad::Args&) {
  const Values &scores = in[0], &experts = in[1];
  const auto count = scores.dim(-1), rows = scores.size() / count;
  for (std::int64_t o = 0; o < 2; ++o)
    for (std::int64_t e = 0; in[static_cast<std::size_t>(2 + o)] && e < count; ++e)
      out[static_cast<std::size_t>(o)].add(e, in[static_cast<std::size_t>(2 + o)][e]);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* row = scores.v.data() + r * count;
    const double top = *std::max_element(row, row + count);
    double all = 0;
    for (std::int64_t e = 0; e < count; ++e) all += std::exp(row[e] - top);
    for (std::int64_t e = 0; e < count; ++e) out[0].add(e, std::exp(row[e] - top) / all);
  }
  for (std::int64_t i = 0; i < experts.size(); ++i) out[1].add(static_cast<std::int64_t>(experts[i]), 1);
}

inline void expert_balance_reference(Outputs out, Inputs in, const ExpertBalance::Args& a) {
  const auto valid = std::count_if(in[2].v.begin(), in[2].v.end(), [](double t) { return t >= 0; });
  const double rows = static_cast<double>(in[2].size()) * a.layers;
  for (std::int64_t i = 0; i < in[1].size(); ++i)
    out[0].add(0, static_cast<double>(a.coefficient) * static_cast<double>(in[0].size() * valid) *
                      (in[0][i % in[0].size()] / rows) * (in[1][i] / (rows * a.ranks)));
}

inline void expert_load_cases(auto& to) {
  to.add("expert_balance+load", "RxE", {"scores RE master", "experts R2<E"}, {{8192, 128}, {8192, 8}},
         [](const auto& v) { return expert_load(v[0], v[1], v.none(), v.none())[0]; });
}
inline void expert_balance_cases(auto& to) {
  to.add("expert_balance", "RxE", {"probabilities E master", "counts E f32", "targets R<E"}, {{8192, 128}},
         [](const auto& v) { return expert_balance(v[0], v[1], v[2], {.coefficient = 0.01f}); });
}

}  // namespace hpcdl::contract
