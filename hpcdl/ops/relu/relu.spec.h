#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/relu/relu.h"

namespace hpcdl::contract {

inline Contracts relu_contracts() {
  auto c = of<Relu>("relu", "y = max(x, 0); NaN stays NaN", {"x"}, {"y"});
  set_row_sizes(c);
  c.flops = flops_per_result(0);
  c.flush = 0, c.huge = 1e30;
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 1); };
  c.reference = each<Relu::Args>([](std::int64_t i, Inputs in, const Relu::Args&) {
    const double x = in[0][i];
    return std::pair(x > 0 || std::isnan(x) ? x : 0.0, 0.0);
  });

  auto b = backward_of(c, "relu_backward", "dx = y > 0 ? dy : 0", {"y", "dy"}, {"dx"});
  b.huge = 1e4;
  b.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  b.reference = each<Relu::Args>([](std::int64_t i, Inputs in, const Relu::Args&) {
    if (std::isnan(in[0][i])) return std::pair(0.0, kAny);
    return in[0][i] > 0 ? std::pair(in[1][i], 0.0)
                        : std::pair(0.0, std::isfinite(in[1][i]) ? 0 : kAny);  // masking by a product gives 0 * inf
  });
  return {c, b};
}

inline void relu_cases(auto& to) {
  to.add("relu", "RxC", {"x RC"}, plane_shapes(), [](const auto& v) { return relu(v[0]); });
}

}  // namespace hpcdl::contract
