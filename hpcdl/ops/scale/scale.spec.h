#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/scale/scale.h"

namespace hpcdl::contract {

inline void scale_reference(Outputs out, Inputs in, const Scale::Args& a) {
  const auto factor = static_cast<double>(a.factor), cap = static_cast<double>(a.cap);
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    const double x = factor * in[0][i];
    out[0].set(i, cap > 0 ? cap * std::tanh(x / cap) : x, 2 * std::fabs(x));
  }
}

inline void scale_cases(auto& to) {
  to.add("scale+cap", "RxC", {"x RC"}, plane_shapes(), [](const auto& v) { return scale(v[0], {1, 30}); });
}

}  // namespace hpcdl::contract
