#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"

namespace hpcdl::contract {

struct LossScaleCall {
  LossScale::Args args;
  float grad_scale = 1;
  std::int64_t step = 0;  // counts from 0
  bool skip = false;      // a gradient of this step is not finite
};

/// scale, counts to grad_scale, step, scale, counts
inline void loss_scale_reference(Outputs out, Inputs in, const LossScaleCall& a) {
  const double before = in[0][0], least = static_cast<double>(a.args.least);
  double good = in[1][0], skipped = in[1][1], stuck = in[1][2], scale = before;
  out[0].set(0, static_cast<double>(a.grad_scale) / before, 0);
  out[1].set(0, static_cast<double>(a.step) - skipped, 0);
  if (a.skip) {
    good = 0, skipped += 1, stuck = before <= least ? stuck + 1 : 0;
    scale = std::max(before * static_cast<double>(a.args.backoff), least);
  } else {
    stuck = 0, good += 1;
    if (good >= a.args.interval)
      good = 0, scale = std::min(before * static_cast<double>(a.args.growth), static_cast<double>(a.args.most));
  }
  out[2].set(0, scale, 0);
  const double counts[] = {good, skipped, stuck};
  for (int i = 0; i < 3; ++i) out[3].set(i, counts[i], 0);
}

inline Contracts loss_scale_contracts() {
  Contract c;
  c.name = "loss_scale";
  c.formula =
      "grad_scale /= scale, step -= counts[1]; then, with skip: scale = max(scale backoff, least), counts = (0, +1, +1 "
      "where scale <= least, else 0); "
      "without: counts[2] = 0 and, where ++counts[0] = interval, counts[0] = 0 and scale = min(scale growth, most)";
  c.inputs = {"scale", "counts"}, c.outputs = {"grad_scale", "step", "scale", "counts"};
  c.dims = {{"interval", 1, 12}};
  c.rows = kNoRows;
  c.shapes = {{4}, {1}, {2}, {3}, {5}, {6}, {8}, {11}};
  c.typical = {3};
  c.timed = {4};
  c.variants = 3;  // a good step; an overflow; an overflow at a scale below the minimum
  c.problem = [](const Dims& d, DType, int v) {
    Problem p;
    p.in = {{LossScale::kScale, Role::positive}, {LossScale::kCounts, Role::index, d[0]}};
    p.out = {{{1}, DType::f32}, {{1}, DType::i32}, LossScale::kScale, LossScale::kCounts};
    const LossScaleCall a{{2, 0.5f, v == 2 ? 1.5f : 0.25f, 2, static_cast<std::int32_t>(d[0])}, 0.5f, 100, v > 0};
    p.set_args(hpcdl_loss_scale_args{a.args.growth, a.args.backoff, a.args.least, a.args.most, a.grad_scale,
                                     a.args.interval, a.skip, a.step},
               a);
    return p;
  };
  c.reference = with_args<LossScaleCall>(loss_scale_reference);
  c.flops = [](const Problem&) { return 1.0; };
  return {c};
}

/// Around the norm that decides whether a step is skipped.
inline void loss_scale_cases(auto& to) {
  auto& family = to.add_forward("loss_scale", "N", {"p.grad N"}, {{589824}}, [](const auto& v) {
    const auto scale = v.graph.input("scale", LossScale::kScale), counts = v.graph.input("counts", LossScale::kCounts);
    record_loss_scale(v.graph, scale, counts, {}, [&] { record_grad_norm(v.graph, std::vector{v[0]}, {}); });
    return v.none();
  });
  family.index_dim = 0, family.positive = true;
}

}  // namespace hpcdl::contract
