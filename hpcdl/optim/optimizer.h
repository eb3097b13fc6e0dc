#pragma once
// The optimizers of a training step with one interface: their moments for every parameter, and the record that updates
// all of them.

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/sgd/sgd.h"
#include "hpcdl/state/table.h"

namespace hpcdl {

using OptimizerArgs = std::variant<AdamW::Args, Sgd::Args>;

class Optimizer {
 public:
  /// Adds its moments to the table for its lifetime. The table must outlive it.
  Optimizer(StateTable& table, const OptimizerArgs& args);

  /// The gradients of all parameters as variables of a program, in the order of the table.
  std::vector<Var> gradients(Graph& g) const;
  /// Records the update of all parameters.
  void record(Graph& g) const;
  /// "NAME.m" and so on, one parameter after the other.
  std::span<const StateEntry> moments() const { return moments_->entries; }

 private:
  StateTable& table_;
  OptimizerArgs args_;
  std::shared_ptr<const StateGroup> moments_;
};

}  // namespace hpcdl
