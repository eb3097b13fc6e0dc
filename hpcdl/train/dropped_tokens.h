#pragma once
// How many tokens did not fit into the messages of a step so far (nn::ForwardOptions::expert_capacity). The number stays on
// the device: a step that has dropped some changes nothing, and the host learns of it with the results of the step.

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::train {

class DroppedTokens {
 public:
  /// described: without memory, so that programs can be recorded only.
  DroppedTokens(Device device, bool described);

  /// In a pass, which has dropped `of_pass` tokens on this rank; absent: it had room for all. The first pass of a step
  /// overwrites the number, the others add to it.
  void record(Graph& g, const Var& of_pass, Write write) const;
  /// In the update, between the gradient norm and the optimizer: afterwards the number is that of all `ranks`, and if it
  /// is not 0, the optimizer changes nothing.
  void record_update(Graph& g, const Axis& ranks) const;
  /// The number, f32.
  const Tensor& number() const { return number_.tensor; }

 private:
  Var constant(Graph& g) const { return g.constant("dropped_tokens", number_.tensor); }
  OwnedTensor number_;
};

}  // namespace hpcdl::train
