#pragma once
// The model and the batches of a run without its data: to inspect, time and tune its programs.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The model of a run, without its data. Instead of what the data would set: a vocabulary of data.vocab_size, which a
/// trained tokenizer has at most, or ten classes. Resolves `config`. See make_run_model().
std::unique_ptr<models::Trainable> model_without_data(RunConfig& config, std::optional<std::uint64_t> seed,
                                                      const parallel::Mesh& mesh = {});

/// Random inputs of a pass: ids, targets and pixels that a model of `config` can read.
struct DrawnBatch {
  std::vector<OwnedTensor> tensors;
  std::int64_t targets = 0;

  DrawnBatch(const RunConfig& config, std::span<const models::InputSpec> inputs);
  std::vector<View> views() const;
};

}  // namespace hpcdl::train
