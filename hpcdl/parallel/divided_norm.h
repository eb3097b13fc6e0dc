#pragma once
// The norm of gradients that ranks have divided among themselves, with the bits of one rank that has them all: each rank
// sums the squares of its blocks of kTensorBlock elements, all ranks gather these sums, and add them up in the order of
// the tensors.

#include <optional>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::parallel {

struct DividedGradient {
  Var mine;                      // the elements of this rank
  std::vector<Interval> pieces;  // the elements of every rank; they begin at multiples of kTensorBlock
};
using DividedGradients = std::vector<DividedGradient>;

/// record_grad_norm (ops/grad_norm) of gradients that the ranks of `axis` have divided. tensor: the axis of the ranks
/// that share layers; `whole` gradients are the same on all of them, and each has its own `parts`.
void record_divided_grad_norm(Graph& g, const DividedGradients& whole, const DividedGradients& parts,
                              const GradNorm::Args& args, const Axis& axis, const std::optional<Axis>& tensor);

}  // namespace hpcdl::parallel
