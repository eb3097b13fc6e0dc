#pragma once
// Sums of the gradients of micro-batches whose bits do not depend on how many ranks divide them (parallel.invariant).
//
// The micro-batches of a step, M = dp x accumulate of them and both powers of two, are the leaves of a binary tree: leaf j
// is micro-batch j / dp of rank j % dp. A node adds what differs in one bit of j, the highest bit first: leaves j and
// j + M / 2, then these sums for j and j + M / 4, and so on. Micro-batches are the higher bits, so a rank adds its own
// first, and then ranks add theirs by recursive halving (comm::Algorithm::halving), whose first partners are dp / 2 apart.
// A rank takes its micro-batches in the order of their reversed bits, in which those that are added are neighbours: it
// needs memory for log2(accumulate) further gradients.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/state/table.h"

namespace hpcdl::train {

class GradientTree {
 public:
  /// leaves: micro-batches of this rank, a power of two. described: without memory, so that programs can be recorded
  /// only. Gradients stay where they are from then on.
  GradientTree(std::span<const StateEntry> parameters, std::int64_t leaves, Device device, bool described);

  std::int64_t leaves() const { return std::int64_t{1} << levels_.size(); }
  /// The micro-batch that comes after i others.
  std::int64_t micro(std::int64_t i) const;
  /// How many sums follow after it.
  int sums(std::int64_t i) const;
  /// Records what follows after a micro-batch, whose gradients overwrote those before: so many `sums`, of what was kept;
  /// unless they complete the tree, the result is kept.
  void record(Graph& g, int sums) const;
  std::int64_t bytes() const;

 private:
  using Pair = std::pair<Var, Var>;  // a gradient, and where its level keeps it
  std::vector<Pair> pairs(Graph& g, int level) const;

  std::span<const StateEntry> parameters_;
  std::vector<Buffer> memory_;               // by level
  std::vector<std::vector<Tensor>> levels_;  // by level, then by parameter
};

}  // namespace hpcdl::train
