#pragma once

#include <span>

#include "hpcdl/models/language_model.h"
#include "hpcdl/models/substitutes.h"

namespace hpcdl::models {

/// How much the next token of a model changes with one matrix: the mean divergence (Kullback-Leibler, in nats) over a few
/// windows of a text.
class LayerDivergence {
 public:
  /// The model is on a CPU and not quantised; it outlives this. Of the tokens, at most the first 1024 are used. Throws
  /// Error for fewer than two tokens.
  LayerDivergence(const LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens);

  /// If the matrix of this name in its files has these values (out, in) instead, in f32. `transposed`: the model has it as (in, out).
  double of(const std::string& name, const View& values, bool transposed);

 private:
  const Slot& slot_of(const std::string& name) const;
  std::vector<float> log_probabilities(const Instance& exe, std::size_t window);

  StepParams params_;
  Stream stream_;
  std::string prefix_;
  std::vector<std::vector<std::int32_t>> windows_;
  std::shared_ptr<const Pass> pass_;
  std::shared_ptr<Buffer> arena_;
  std::vector<std::vector<float>> original_;  // of each window: log-probabilities (length, vocabulary)
};

}  // namespace hpcdl::models
