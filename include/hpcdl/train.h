#pragma once
// Training: a step object for your own loop, and whole runs from a config file.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/model.h"
#include "hpcdl/pool.h"

namespace hpcdl {

namespace io {
struct UsedWays;
}
namespace train {
class TrainStep;
}

/// AdamW; weight decay applies to matrices only.
struct TrainOptions {
  std::int64_t batch = 8;   // sequences of a micro-batch, on this rank
  std::int64_t length = 0;  // tokens of each; 0: the model's context
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1;             // largest global gradient norm; 0: no clipping
  double dropout = 0;          // probability
  std::uint64_t seed = 1;      // of dropout
  DType compute = DType::f32;  // of activations: f32, bf16, or f16, which scales the loss
  bool recompute = false;      // compute activations again in the backward pass: less memory, the same result
  std::string ways = {};       // preferred on a GPU, as train.ways: "attention=cudnn"
  bool accumulate = false;     // steps of more than one micro-batch: accumulate() and update()
  comm::Group ranks = {};      // that share each batch: all call the same functions, each with its part
};

struct StepResult {
  double loss = 0;           // mean over the targets that count, of all ranks
  std::int64_t targets = 0;  // that count, of all ranks
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // the loss or a gradient was not finite: nothing has been changed
};

/// One optimizer step of a model: forward, backward, the sum of the gradients over ranks, clipping, AdamW.
class Trainer {
 public:
  /// The model is moved to the device, and must have gradients. Model and pool must outlive this.
  Trainer(Model& model, Pool& pool, const TrainOptions& options = {}, Device device = {});
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  ~Trainer();

  /// A whole step on one micro-batch. tokens and targets: (batch, length) ids; a target of -1 does not count.
  StepResult step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, double learning_rate);
  /// A step of several micro-batches: accumulate() each, `last` with the last one, then update().
  void accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, bool last);
  StepResult update(double learning_rate);
  /// The mean loss of a micro-batch on this rank, without dropout; nothing is changed.
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);

  /// Optimizer steps done.
  std::int64_t steps() const { return steps_; }
  /// Writes a checkpoint into the folder: weights, moments and the number of steps. A kill leaves the last one whole.
  /// Collective over the ranks.
  void save_checkpoint(const std::string& folder);
  /// Continues from the newest whole checkpoint of the folder, with the same bits; false if there is none. Throws Error
  /// if it is of another model. `warn` hears of damaged ones, and why bits can differ: this machine lacks ways in which
  /// the checkpoint was computed, or this object has computed in others before. Collective over the ranks.
  bool load_checkpoint(const std::string& folder, const std::function<void(const std::string&)>& warn = {});

 private:
  using Hears = std::function<void(const std::string&)>;
  void choose_ways(const io::UsedWays* before, const Hears& hears);

  TrainOptions options_;
  std::unique_ptr<train::TrainStep> step_;
  std::unique_ptr<io::UsedWays> ways_;    // null: not chosen yet, the built-in ones
  bool has_run_ = false;                  // then ways stay as they are
  std::int64_t steps_ = 0, tokens_ = 0;   // so far
  std::int64_t micro_ = 0, counted_ = 0;  // micro-batches of this step, and their targets that count
};

/// A run as `hpcdl train` makes it.
struct RunOptions {
  std::vector<std::string> files;      // TOML; later ones win
  std::vector<std::string> overrides;  // "train.steps=100"
  comm::Group world = {};              // the ranks that train together; [parallel] of the config says how
  std::function<void(std::string_view line)> say = {};  // hears what the run reports, on rank 0
};
struct RunResult {
  std::string model;                // folder of the trained model; empty if a signal has stopped the run
  std::int64_t steps = 0;           // optimizer steps done, those of earlier runs included
  double loss = 0;                  // of the last step
  std::optional<double> eval_loss;  // at the end, if there is something to evaluate on
};
/// Trains, or continues a run whose output folder has checkpoints. `output` must be set. Throws UsageError for a config
/// that is wrong, and says what is.
RunResult run_training(const RunOptions& options);

}  // namespace hpcdl
