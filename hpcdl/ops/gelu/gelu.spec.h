#pragma once

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/gelu/gelu.h"

namespace hpcdl::contract {

inline double gelu(double x, const Gelu::Args& a) { return a.form == Gelu::Form::erf ? gelu_erf(x) : gelu_tanh(x); }
inline double gelu_slope(double x, const Gelu::Args& a) {
  return a.form == Gelu::Form::erf ? gelu_erf_slope(x) : gelu_tanh_slope(x);
}
/// Magnitudes in the formula of the derivative: x (1 - t^2) u' cancels in 1 - t^2 and grows with x^3 until that is 0.
inline double gelu_slope_scale(double x) { return 1 + std::fabs(x) * std::min(1 + x * x, 40.0); }
/// True where the derivative's formula and its limit disagree.
inline bool gelu_slope_is_open(double x, double dy) { return std::isinf(x) || (std::isinf(dy) && std::fabs(x) > 1); }

inline Problem gelu_problem(const Dims& d, DType t, int variant, int operands) {
  Problem p = alike(d, t, operands);
  p.set_args(hpcdl_gelu_args{variant}, Gelu::Args{variant == 1 ? Gelu::Form::erf : Gelu::Form::tanh});
  return p;
}

inline Contracts gelu_contracts() {
  auto c = of<Gelu>("gelu", "y = x Phi(x), or its tanh form", {"x"}, {"y"});
  set_row_sizes(c);
  c.flops = flops_per_result(4);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) { return gelu_problem(d, t, v, 1); };
  c.reference = each<Gelu::Args>([](std::int64_t i, Inputs in, const Gelu::Args& a) {
    const double x = in[0][i];
    if (std::isinf(x) && x < 0) return std::pair(0.0, kAny);  // -inf * 0
    return std::pair(gelu(x, a), 2 * std::fabs(x));
  });

  auto b = backward_of(c, "gelu_backward", "dx = gelu'(x) dy", {"x", "dy"}, {"dx"});
  b.flops = flops_per_result(6);
  b.problem = [](const Dims& d, DType t, int v) { return gelu_problem(d, t, v, 2); };
  b.reference = each<Gelu::Args>([](std::int64_t i, Inputs in, const Gelu::Args& a) {
    const double x = in[0][i], dy = in[1][i];
    if (gelu_slope_is_open(x, dy)) return std::pair(0.0, kAny);
    return std::pair(gelu_slope(x, a) * dy, std::fabs(dy) * gelu_slope_scale(x));
  });
  return {c, b};
}

inline void gelu_cases(auto& to) {
  to.add("gelu", "RxC", {"x RC"}, plane_shapes(), [](const auto& v) { return gelu(v[0]); });
  to.add("gelu+erf", "RxC", {"x RC"}, plane_shapes(), [](const auto& v) { return gelu(v[0], {Gelu::Form::erf}); });
}

}  // namespace hpcdl::contract
