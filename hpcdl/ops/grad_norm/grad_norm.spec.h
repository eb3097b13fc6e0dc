#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"

namespace hpcdl::contract {

struct GradNormCall {
  GradNorm::Args args;
  float grad_scale = 1;
};

inline void grad_norm_reference(Outputs out, Inputs in, const GradNormCall& a) {
  double squares = 0;
  for (double g : in[0].v) squares += g * g;
  const double norm = static_cast<double>(a.grad_scale) * std::sqrt(squares),
               clip = std::min(1.0, static_cast<double>(a.args.max_norm) / (norm + 1e-6));
  out[0].set(0, norm, norm);
  out[1].set(0, clip, std::isfinite(norm) ? clip : kAny);
}

inline Contracts grad_norm_contracts() {
  Contract c;
  c.name = "grad_norm";
  c.formula = "norm = |grad_scale| sqrt(sum of squares); clip = min(1, max_norm / (norm + 1e-6))";
  c.inputs = {"gradient"}, c.outputs = {"norm", "clip"};
  c.dims = {{"elements", 1, 20000}};
  c.rows = kNoRows;
  c.shapes = {{64}, {1}, {2}, {7}, {15}, {16}, {17}, {63}, {65}, {129}, {1023}, {0}, {8191}, {8192}, {8193}, {40000}};
  c.typical = {8200};
  c.timed = {1 << 20};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    p.in = {{{{d[0]}, t}}};
    p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
    const GradNormCall a{{.max_norm = v == 1 ? 1e6f : 0.5f}, v == 1 ? 0.25f : 1.0f};
    p.set_args(hpcdl_grad_norm_args{a.grad_scale, a.args.max_norm}, a);
    return p;
  };
  c.reference = with_args<GradNormCall>(grad_norm_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[0]; };
  c.flops = flops_per_input(2);
  // Squares below the range of a float are lost: tiny and subnormal gradients have norm 0.
  c.patterns = {Pattern::positive, Pattern::huge, Pattern::offset,  Pattern::constant, Pattern::zero,
                Pattern::mixed,    Pattern::nan,  Pattern::pos_inf, Pattern::neg_inf};
  c.huge = 1e15;
  return {c};
}

inline void grad_norm_cases(auto& to) {
  to.add_forward("grad_norm", "N", {"gradient N"}, {{67108864}, {589824}},
                 [](const auto& v) { return record_grad_norm(v.graph, std::vector{v[0]}, {}), v.none(); });
}

}  // namespace hpcdl::contract
