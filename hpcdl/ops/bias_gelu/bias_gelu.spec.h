#pragma once

#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/gelu/gelu.spec.h"

namespace hpcdl::contract {

inline void bias_gelu_backward_reference(Outputs out, Inputs in, const Gelu::Args& a) {
  const auto cols = in[1].size();
  for (std::int64_t c = 0; c < cols; ++c) {
    double sum = 0, scale = 0, stored = 0;
    for (std::int64_t i = c; i < in[0].size(); i += cols) {
      const double x = in[0][i] + in[1][c], dy = in[2][i], dx = gelu_slope(x, a) * dy;
      const double noise = std::fabs(dy) * (gelu_slope_scale(x) + std::fabs(in[0][i]) + std::fabs(in[1][c]));
      const bool open = gelu_slope_is_open(x, dy);
      out[0].set(i, dx, open ? kAny : noise);
      sum += dx, scale += open ? kAny : noise, stored += std::fabs(dx);
    }
    out[1].set(c, sum, scale, stored);
  }
}

inline Contracts bias_gelu_contracts() {
  auto c = of<BiasGelu>("bias_gelu", "y = gelu(x + bias)", {"x", "bias"}, {"y"});
  set_row_sizes(c);
  c.flops = flops_per_result(5);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = gelu_problem(d, t, v, 1);
    p.in.push_back({{{d[1]}, t}, Role::weight});
    return p;
  };
  c.reference = each<Gelu::Args>([](std::int64_t i, Inputs in, const Gelu::Args& a) {
    const double b = in[1][i % in[1].size()], x = in[0][i] + b;
    if (std::isinf(x) && x < 0) return std::pair(0.0, kAny);
    return std::pair(gelu(x, a), 2 * (std::fabs(in[0][i]) + std::fabs(b) + std::fabs(x)));
  });

  auto b = backward_of(c, "bias_gelu_backward", "dx = gelu'(x + bias) dy; dbias = sum of dx over the rows",
                       {"x", "bias", "dy"}, {"dx", "dbias"});
  b.flops = flops_per_input(7);
  b.problem = [](const Dims& d, DType t, int v) {
    Problem p = gelu_problem(d, t, v, 1);
    p.in.push_back({{{d[1]}, t}, Role::weight});
    p.in.push_back({{{d[0], d[1]}, t}});
    p.out.push_back({{d[1]}, t});
    return p;
  };
  b.reduction = [](const Problem& p) { return p.in[0].spec.size() / std::max<std::int64_t>(p.in[1].spec.size(), 1); };
  b.reference = with_args<Gelu::Args>(bias_gelu_backward_reference);
  return {c, b};
}

inline void bias_gelu_cases(auto& to) {
  to.add("bias_gelu", "RxC", {"x RC", "bias C"}, plane_shapes(), [](const auto& v) { return bias_gelu(v[0], v[1]); });
}

}  // namespace hpcdl::contract
