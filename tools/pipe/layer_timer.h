#pragma once

#include <map>
#include <memory>
#include <vector>

#include "hpcdl/instance.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/pipe/costs.h"
#include "hpcdl/pipe/cut.h"
#include "hpcdl/pipe/runner.h"
#include "hpcdl/pool.h"
#include "hpcdl/stream.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/synthetic_run.h"

namespace hpcdl::lab::pipe {

/// Times the layers of a run on a CPU: the programs of a pipeline in which every layer is a stage, all of them on one
/// rank.
class LayerTimer {
 public:
  /// `halves`: gradients of weights apart from those of inputs; otherwise both count as gradients of inputs. Resolves
  /// `config`, and makes the whole model with random inputs.
  LayerTimer(train::RunConfig& config, Pool& pool, hpcdl::pipe::Backward backward);

  /// Runs two micro-batches forward and back.
  void round();
  /// The layers with the least times of any round, and what they keep and send.
  const std::vector<hpcdl::pipe::PartCost>& layers() const { return layers_; }

 private:
  StepParams params_;
  Stream stream_;
  std::unique_ptr<models::Trainable> model_;
  std::unique_ptr<train::DrawnBatch> batch_;
  std::vector<hpcdl::pipe::PartCost> layers_;
  std::unique_ptr<hpcdl::pipe::Runner> runner_;
  std::map<const Planned*, double*> times_;  // of programs, in layers_
};

}  // namespace hpcdl::lab::pipe
