#pragma once
// The norm of gradients that ranks have divided among themselves, with the bits of one rank that has them all: each rank
// sums the squares of its blocks of kTensorBlock elements, all ranks gather these sums, and add them up in the order of
// the tensors.

#include <cstddef>
#include <optional>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {

struct DividedGradient {
  Var mine = {};  // the elements of this rank; absent if its layer is on other ranks
  /// The elements of every rank along NormAxes::data, which begin at multiples of kTensorBlock. One piece if these ranks
  /// do not divide it, or if it is on other ranks.
  std::vector<Interval> pieces = {};
  bool part = false;  // every rank along NormAxes::tensor has its own, instead of the same
  int stage = 0;      // the rank along NormAxes::stages that has it
};
using DividedGradients = std::vector<DividedGradient>;

/// What ranks have divided: along `data` the elements of gradients, along `stages` the layers, along `tensor` weights.
struct NormAxes {
  std::optional<Axis> data = {}, stages = {}, tensor = {};
};

/// record_grad_norm (ops/grad_norm) of gradients that the ranks of these axes have divided.
void record_divided_grad_norm(Graph& g, const DividedGradients& gradients, const GradNorm::Args& args,
                              const NormAxes& axes);

/// The parts of it that others record: the sums of squares of the blocks of one gradient (ops/many_tensors.h), f64, one
/// per block. record_norm_of_totals() ends it with the sums of all.
void record_squares(Graph& g, const Var& sums, const Var& gradient);
/// The same before record `before` of a program that is edited.
void insert_squares(Edit& edit, std::size_t before, Operand sums, Operand gradient);

}  // namespace hpcdl::parallel
