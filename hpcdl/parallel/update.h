#pragma once
// Tensor parallelism in the update phase of a step: gradients whose summands are on different ranks, and a norm that
// counts every parameter once, whether ranks have parts of it or all of it.

#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"

namespace hpcdl::parallel {

/// Sums gradients (f32) over the ranks, in place, packed for one collective.
void record_sum_gradients(Graph& g, const std::vector<Var>& gradients, const Axis& axis);

/// record_grad_norm (ops/grad_norm): `whole` gradients are the same on all ranks, and each rank has its own `parts`.
/// Every rank gets the same bits.
void record_grad_norm(Graph& g, const std::vector<Var>& whole, const std::vector<Var>& parts, const GradNorm::Args& a,
                      const Axis& axis);

/// The second half of it: applies GradNorm::finish() to the sum of `totals` (f64).
void record_norm_of_totals(Graph& g, const Var& totals, const GradNorm::Args& a);

}  // namespace hpcdl::parallel
