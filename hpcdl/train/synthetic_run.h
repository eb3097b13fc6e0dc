#pragma once
// A run's model and batches where no data are opened: to look at its programs, to time and to tune them.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// The model of a run, without its data. What [model] leaves to them: a vocabulary of data.vocab_size, which a trained
/// tokenizer has at most, or ten classes. Resolves `config`.
std::unique_ptr<models::Trainable> model_without_data(RunConfig& config, std::optional<std::uint64_t> seed,
                                                      const parallel::Mesh& mesh = {});

/// Inputs of a pass, drawn: ids, targets and pixels that a model of `config` can read.
struct DrawnBatch {
  std::vector<OwnedTensor> tensors;
  std::int64_t targets = 0;

  DrawnBatch(const RunConfig& config, const TrainStep& step);
  std::vector<View> views() const;
};

}  // namespace hpcdl::train
