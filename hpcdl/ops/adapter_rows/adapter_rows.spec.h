#pragma once

#include <vector>

#include "hpcdl/ops/adapter_rows/adapter_rows.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

inline void adapter_rows_reference(Outputs out, Inputs in, const AdapterRows::Args&) {
  const Values &base = in[0], &x = in[1], &chosen = in[2], &a = in[3], &b = in[4], &ends = in[5], &scales = in[6],
               &shifts = in[7];
  const auto N = base.dim(-1), K = x.dim(-1);
  for (std::int64_t r = 0; r < chosen.size(); ++r) {
    const auto i = static_cast<std::int64_t>(chosen[r]);
    const auto begin = i > 0 ? static_cast<std::int64_t>(ends[i - 1]) : 0,
               rank = i < 0 ? 0 : static_cast<std::int64_t>(ends[i]) - begin;
    std::vector<Sum> low(static_cast<std::size_t>(rank));
    for (std::int64_t j = 0; j < rank; ++j)
      for (std::int64_t k = 0; k < K; ++k) low[static_cast<std::size_t>(j)].add(x[r * K + k] * a[(begin + j) * K + k]);
    for (std::int64_t n = 0; n < N; ++n) {
      Sum y;
      y.add(base[r * N + n]);
      for (std::int64_t j = 0; j < rank; ++j) {
        const auto& h = low[static_cast<std::size_t>(j)];
        const double weight = scales[i] * b[begin * N + n * rank + j];
        y.value += weight * h.value, y.scale += std::fabs(weight) * h.scale;
      }
      if (shifts && i >= 0) y.add(shifts[i * N + n]);
      y.put(out[0], r * N + n);
    }
  }
}

/// A of E adapters, each of rank 16.
inline void adapter_rows_cases(auto& to) {
  auto& family =
      to.add_forward("adapter_rows", "RxCxOxE",
                     {"base RO", "x RC", "chosen R<E", "a (E44)C f32", "b (E44O) f32", "ends E<E", "scales E f32"},
                     {{64, 2048, 2048, 8}, {512, 2048, 8192, 8}},
                     [](const auto& v) { return adapter_rows(v[0], v[1], v[2], v[3], v[4], v[5], v[6]); });
  family.integer = [](std::string_view name, std::int64_t i, const Shape& s) {
    return name == "ends" ? 16 * (i + 1) : i % s[3];
  };
}

}  // namespace hpcdl::contract
