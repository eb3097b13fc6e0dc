#pragma once
// What the update phase of a step has to know of tensor parallelism: gradients that the ranks hold addends of, and a
// norm that counts every parameter once, whether a rank has a part of it or all.

#include <vector>

#include "hpcdl/graph/graph.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"

namespace hpcdl::parallel {

/// Sums gradients (f32) over the ranks, in place, packed for one collective.
void record_sum_gradients(Graph& g, const std::vector<Var>& gradients, const Axis& axis);

/// record_grad_norm (ops/grad_norm): `whole` gradients are the same on all ranks, of `parts` each rank has its own.
/// Every rank gets the same bits.
void record_grad_norm(Graph& g, const std::vector<Var>& whole, const std::vector<Var>& parts, const GradNorm::Args& a,
                      const Axis& axis);

}  // namespace hpcdl::parallel
