#pragma once

#include <string>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/quant_linear/quant_linear.h"
#include "hpcdl/ops/quant_linear/quant_values.h"

namespace hpcdl::contract {

/// y = x W^T + bias + residual. For many rows, W is rounded to the type of x, unless something else is.
inline void quant_linear_reference_of(Outputs out, Inputs in, const QuantLinear::Args& a, QuantRounding rounding) {
  const DType type = in[0].spec.dtype;
  const QuantValues w{a.format, in[1], in[2], in[3], in[4], type, rounding};
  const auto n = w.n(), k = w.k(), m = k > 0 ? in[0].size() / k : 0;
  const bool rounds_all = rounding == QuantRounding::none && m > QuantLinear::kFewRows;
  std::vector<double> row(static_cast<std::size_t>(k)), sizes(row.size());
  for (std::int64_t j = 0; j < n; ++j) {
    w.read_row(j, row, sizes);
    for (auto& value : row)
      if (rounds_all) value = rounded_to(type, static_cast<float>(value));
    for (std::int64_t i = 0; i < m; ++i) {
      Sum y;
      for (std::int64_t l = 0; l < k; ++l) {
        y.add(in[0][i * k + l] * row[static_cast<std::size_t>(l)]);
        y.scale += std::fabs(in[0][i * k + l]) * sizes[static_cast<std::size_t>(l)];
      }
      if (in[5]) y.add(in[5][j]);
      if (in[6]) y.add(in[6][i * n + j]);
      y.put(out[0], i * n + j);
    }
  }
}
inline void quant_linear_reference(Outputs out, Inputs in, const QuantLinear::Args& a) {
  quant_linear_reference_of(out, in, a, QuantRounding::none);
}

inline void quant_linear_cases(auto& to) {
  for (int f = 0; f < kQuantFormats; ++f) {
    const auto format = static_cast<QuantFormat>(f);
    auto& family = to.add("quant_linear+" + std::string(quant_format_info(format).name), "MxNxK", {"x MK"},
                          {{1, 32768, 4096}, {8, 4096, 4096}, {512, 4096, 4096}}, [format](const auto& v) {
                            return quant_linear(v[0], quant_inputs(v, format), v.none(), v.none(), {.format = format});
                          });
    family.nearest_supported = [block = quant_format_info(format).block](Shape s) {
      s[2] = (s[2] + block - 1) / block * block;
      return s;
    };
  }
}

}  // namespace hpcdl::contract
