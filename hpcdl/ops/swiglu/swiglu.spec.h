#pragma once

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/gelu/gelu.spec.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl::contract {

/// The error of a function of exp relative to an operand that it is multiplied by.
inline constexpr double kGateFloor = 0x1p-100;

/// The product of two gradients may exceed the range of a float before it is scaled back: magnitudes are kept moderate.
inline void swiglu_backward_reference(Outputs out, Inputs in, const Swiglu::Args& a) {
  if (a.gate == Swiglu::Gate::gelu_tanh) {
    for (std::int64_t i = 0; i < in[0].size(); ++i) {
      const double g = in[0][i], u = in[1][i], dy = in[2][i];
      out[0].set(i, dy * u * gelu_tanh_slope(g), std::fabs(dy * u) * gelu_slope_scale(g));
      out[1].set(i, dy * gelu_tanh(g), 2 * std::fabs(dy * g));
    }
    return;
  }
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    const double g = in[0][i], u = in[1][i], dy = in[2][i], s = sigmoid(g),
                 grow = (1 + std::fabs(g)) * (1 + std::fabs(g));
    const bool open = !std::isfinite(g) || !std::isfinite(u) || !std::isfinite(dy);
    const bool is_nan = std::isnan(g) || std::isnan(u * dy), nan_up = std::isnan(g) || std::isnan(dy);
    if (is_nan) out[0].set(i, NAN, 0);
    else out[0].set(i, dy * u * (s + g * s * (1 - s)), open ? kAny : std::fabs(dy * u) * (s + kGateFloor) * grow);
    if (nan_up) out[1].set(i, NAN, 0);
    else out[1].set(i, dy * g * s, open ? kAny : std::fabs(dy) * (std::fabs(g) * s + kGateFloor) * (1 + std::fabs(g)));
  }
}

inline Contracts swiglu_contracts() {
  auto c = of<Swiglu>("swiglu", "y = gate sigmoid(gate) up", {"gate", "up"}, {"y"});
  set_row_sizes(c);
  c.flops = flops_per_result(4);
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  c.reference = each<Swiglu::Args>([](std::int64_t i, Inputs in, const Swiglu::Args& a) {
    const double g = in[0][i], u = in[1][i];
    if (a.gate == Swiglu::Gate::gelu_tanh) return std::pair(gelu_tanh(g) * u, 2 * std::fabs(g * u));
    if ((std::isinf(g) && g < 0) || (std::isinf(u) && std::fabs(g) > 80)) return std::pair(0.0, kAny);
    const double y = silu(g) * u;
    return std::pair(y, std::fabs(y) * (1 + std::fabs(g)) + kGateFloor * std::fabs(u) * (1 + std::fabs(g)));
  });

  auto b = backward_of(c, "swiglu_backward", "dgate = dy up (s + gate s (1 - s)), dup = dy gate s, s = sigmoid(gate)",
                       {"gate", "up", "dy"}, {"dgate", "dup"});
  b.flops = flops_per_input(8);
  b.problem = [](const Dims& d, DType t, int) {
    Problem p = alike(d, t, 3);
    p.out.push_back(p.out[0]);
    return p;
  };
  b.reference = with_args<Swiglu::Args>(swiglu_backward_reference);
  return {c, b};
}

inline void swiglu_cases(auto& to) {
  to.add("swiglu", "RxC", {"a RC", "b RC"}, plane_shapes(), [](const auto& v) { return swiglu(v[0], v[1]); });
}

}  // namespace hpcdl::contract
