#pragma once

#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

struct AdamWCall {
  AdamW::Args args;
  float lr = 0, grad_scale = 1;
  std::int64_t step = 0;  // counts from 0
};

/// torch.optim.AdamW in double: maps p, gradient, m, v to p, m, v.
inline void adamw_reference(Outputs out, Inputs in, const AdamWCall& a) {
  const auto t = static_cast<double>(a.step + 1), lr = static_cast<double>(a.lr);
  const double b1 = a.args.beta1, b2 = a.args.beta2, c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    const double g = in[1][i] * static_cast<double>(a.grad_scale);
    const double m = b1 * in[2][i] + (1 - b1) * g, v = b2 * in[3][i] + (1 - b2) * g * g,
                 m_abs = std::fabs(b1 * in[2][i]) + std::fabs((1 - b1) * g);
    const double keep = in[0][i] * (1 - lr * static_cast<double>(a.args.weight_decay)),
                 root = std::sqrt(v / c2) + static_cast<double>(a.args.eps);
    // 1 - beta^t may be computed with a float power, so its error is relative to 1.
    const double step = lr * m / c1 / root, noise = lr * m_abs / c1 / root * (1 + 1 / c1 + 1 / c2);
    out[0].set(i, keep - step, std::fabs(in[0][i]) + noise);
    out[1].set(i, m, m_abs);
    out[2].set(i, v, v);
  }
}

inline Contracts adamw_contracts() {
  Contract c;
  c.name = "adamw";
  c.formula =
      "g = gradient grad_scale; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p = p (1 - lr "
      "weight_decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps), t = step + 1; "
      "results go to outputs of their own";
  c.inputs = {"p", "gradient", "m", "v"}, c.outputs = {"p", "m", "v"};
  c.dims = {{"elements", 1, 20000}};
  c.rows = kNoRows;
  c.shapes = {{64}, {1}, {2}, {7}, {15}, {16}, {17}, {63}, {65}, {129}, {1023}, {0}, {8191}, {8193}, {20011}};
  c.typical = {8200};
  c.timed = {1 << 19};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    const Spec s{{d[0]}, t}, f{{d[0]}, DType::f32};
    p.in = {{s, Role::weight}, {s}, {f, Role::weight}, {f, Role::positive}};
    p.out = {s, f, f};
    const hpcdl_adamw_args a{0.01f, 0.9f, v == 1 ? 0.999f : 0.95f, 1e-8f, 0.1f, v == 1 ? 0.5f : 1.0f, v == 1 ? 0 : 6};
    p.set_args(a, AdamWCall{{a.beta1, a.beta2, a.eps, a.weight_decay}, a.lr, a.grad_scale, a.step});
    return p;
  };
  c.reference = with_args<AdamWCall>(adamw_reference);
  c.reduction = [](const Problem&) { return std::int64_t{4}; };
  c.flops = flops_per_input(10);
  c.patterns = {Pattern::positive, Pattern::huge, Pattern::tiny,  Pattern::offset,
                Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::nan};
  return {c};
}

inline void adamw_cases(auto& to) {
  to.add_forward("adamw", "N", {"p N", "p.grad N", "m N master", "v N master"}, vector_shapes(589824),
                 [](const auto& v) {
                   record_adamw(v.graph, std::vector{AdamWTensor<decltype(v.none())>{v[0], v[1], v[2], v[3], v.none()}},
                                {});
                   return v.none();
                 })
      .positive = true;  // second moments must not be negative
}

}  // namespace hpcdl::contract
