#pragma once

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

inline Contracts add_contracts() {
  auto c = of<Add>("add", "y = a + b", {"a", "b"}, {"y"});
  set_row_sizes(c);
  c.flops = flops_per_result(1);
  c.flush = 0, c.huge = 1e30;
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  c.reference = each<Add::Args>([](std::int64_t i, Inputs in, const Add::Args&) {
    return std::pair(in[0][i] + in[1][i], std::fabs(in[0][i]) + std::fabs(in[1][i]));
  });
  return {c};
}

inline void add_cases(auto& to) {
  to.add("add", "N", {"a N", "b N"}, vector_shapes(), [](const auto& v) { return add(v[0], v[1]); });
}

}  // namespace hpcdl::contract
