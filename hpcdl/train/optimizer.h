#pragma once
// The optimizers of a training step with one interface: what they keep for every parameter, and the record that updates
// all of them.

#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/graph/graph.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/sgd/sgd.h"

namespace hpcdl::train {

using OptimizerArgs = std::variant<AdamW::Args, Sgd::Args>;

class Optimizer {
 public:
  /// State of zeros for all parameters of the model, where the model lies; without memory if the model has none. The
  /// model must outlive this.
  Optimizer(models::Trainable& model, const OptimizerArgs& args);

  /// Records the update of all parameters; `gradients` in the order of model.parameters().
  void record(Graph& g, std::span<const Var> gradients) const;
  /// The state in host memory, as of the last fetch(), and taken over by store(): on a GPU they copy it, on a CPU it is
  /// the same memory.
  std::vector<io::NamedTensor> state() const;
  void fetch(const Stream& s) const;
  void store(const Stream& s) const;

 private:
  models::Trainable& model_;
  OptimizerArgs args_;
  std::vector<std::string_view> names_;  // of what is kept for each parameter: f32 tensors of its shape
  Buffer memory_, host_;                 // the host's copy only where it is another
  std::vector<Tensor> tensors_;          // names_.size() for each parameter
};

}  // namespace hpcdl::train
