#pragma once
// One optimizer step of any model and any optimizer as three recorded programs: forward and backward that overwrite the
// gradients (first micro-batch), the same that adds to them (the others), and the update: gradient norm, clip,
// optimizer. A fourth evaluates. Where ranks share the batch, the pass of the last micro-batch also sums the gradients
// over them, so every rank updates alike.

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/graph/executable.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/ops/f32_products.h"
#include "hpcdl/optim/grad_scaler.h"
#include "hpcdl/parallel/batch_norm.h"
#include "hpcdl/parallel/gradients.h"
#include "hpcdl/train/non_finite.h"
#include "hpcdl/train/observer.h"
#include "hpcdl/train/optimizer.h"

namespace hpcdl::train {

struct StepOptions {
  std::int64_t batch = 8, length = 256;  // samples of a micro-batch, and how long each is where the model does not know
  bool accumulate = false;               // more than one micro-batch per step
  nn::ForwardOptions forward = {};
  OptimizerArgs optimizer = AdamW::Args{};
  float clip = 1;          // 0: no clipping
  std::uint64_t seed = 1;  // of dropout
  /// 16-bit products read rounded copies of the weights, which the optimizer writes, instead of rounding them on their
  /// way: 2 bytes more for each weight, half the reads, the same bits. Unset: on a GPU.
  std::optional<bool> copies = {};
  /// GPU: see Graph::Options. On an H200 4 % faster with a batch of 4 x 1024 tokens, 1 % slower with 64 x 1024, whose
  /// products fill the chip.
  bool weights_beside = false;
  /// Of models that name no types: recorded under this policy.
  std::optional<AutocastPolicy> autocast = {};
  /// Of the mean of the losses of a micro-batch; `terms` is set to how many those are.
  std::optional<GradScaler::Options> scaler = {};
  /// Ranks that share the batch out: each calls the same methods with its part, see data/split_data.h.
  comm::Group data = {};
  parallel::ReduceOptions reduce = {};
  F32Products products = F32Products::exact;
  bool sync_batch_norm = false;  // over those ranks
};

/// What an optimizer step came to.
struct StepResult {
  double loss = 0;                // sum over all valid targets of all ranks
  std::int64_t valid_tokens = 0;  // of all ranks
  double correct = 0;    // targets that were the model's first choice, of all ranks; 0 where the model does not count
  double grad_norm = 0;  // before clipping; when it is not finite, nothing has been changed
  bool finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
};

/// Of one micro-batch, on this rank.
struct Evaluation {
  double loss = 0, correct = 0;  // as in StepResult
};

/// Of dynamic loss scaling, after the last update().
using ScaleState = GradScaler::State;

class TrainStep {
 public:
  /// The model needs gradients and must outlive this. It is moved to `device` if it is not there.
  TrainStep(models::Trainable& model, Pool& pool, const StepOptions& options, Device device = {});
  /// With other ranks, whose gradients are summed in memory of this: the model has none then, until another is made for
  /// it.
  ~TrainStep();

  /// What a micro-batch consists of, and what evaluate() takes.
  std::vector<models::InputSpec> inputs() const {
    return model_.inputs(options_.batch, options_.length, options_.forward);
  }
  std::vector<models::InputSpec> evaluation_inputs() const {
    return model_.inputs(options_.batch, options_.length, evaluation_options());
  }

  /// Forward and backward of micro-batch number `micro` (0 overwrites the gradients) of 0-based step `step`. batch:
  /// inputs() in their order, contiguous: in host memory, which is copied, or on the GPU, where it must stay as it is
  /// until result() of the step. On a GPU this only queues work. Ranks exchange gradients in the `last` one alone.
  void accumulate(std::span<const View> batch, std::int64_t step, std::int64_t micro, bool last = true);
  /// Of models whose inputs are tokens and targets, (B, T) each; target -1 ignored.
  void accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t step,
                  std::int64_t micro, bool last = true);
  /// Scales the gradients by 1 / valid_tokens (targets that count, of this rank; the sum over ranks counts), clips,
  /// updates the weights, and waits for all of the step.
  StepResult update(double lr, std::int64_t valid_tokens);
  /// update() in two halves, between which a GPU need not stand still: the first only queues the work; passes of the
  /// step behind may be queued, but not its update, before result() has waited for this one. A step that is not finite
  /// changes nothing, whatever was queued behind it.
  void queue_update(double lr, std::int64_t valid_tokens);
  StepResult result();
  /// Forward only, without what is for training alone: dropout, mixtures, smoothed targets, statistics of the batch.
  Evaluation evaluate(std::span<const View> batch);
  Evaluation evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);

  /// Programs are run by the observer from now on; null: nobody watches.
  void watch(Observer* observer) { observer_ = observer; }

  /// Waits for the micro-batches since the last update(), and returns the sum of their losses on this rank.
  double loss();
  bool scales_loss() const { return scaler_.has_value(); }
  ScaleState scale_state() const { return scale_now_; }
  void set_scale_state(const ScaleState& state);

  /// Why the step of the last result() gave no finite number: the first bad tensor. Runs its micro-batches again,
  /// record by record. Ranks do so each for itself; where only others have bad numbers, it says that.
  NonFinite explain_non_finite();

  /// Records, operands and costs of one optimizer step with `micro_batches` micro-batches.
  std::vector<const Executable*> programs(std::int64_t micro_batches) const;
  /// Weights (with the model's buffers) and optimizer state in host memory, as checkpoints hold them: as of the last
  /// fetch(), and taken over by store().
  std::vector<io::NamedTensor> weights() const;
  std::vector<io::NamedTensor> optimizer_state() const { return optimizer_->state(); }
  /// Copies weights and optimizer state to the host, and back; on a CPU what files hold in another order, the rest is
  /// the same memory.
  void fetch();
  void store();
  /// Ranks that share the batch: all take over the running statistics of the first. Evaluations and checkpoints see
  /// those.
  void share_buffers();
  std::int64_t arena_bytes() const { return arena_->bytes(); }
  const Stream& stream() const { return stream_; }
  bool on_gpu() const { return stream_.device().is_cuda(); }
  /// Where gradients lie that are summed over ranks; null with one rank.
  const parallel::Gradients* gradients() const { return gradients_.get(); }

 private:
  struct Pass {
    std::optional<Executable> exe;
    std::vector<Var> inputs;
    models::PassOutputs out;
  };
  /// One micro-batch: what its pass came to and the inputs that came from the host, in memory that the device copies
  /// from and to by itself.
  struct Staged {
    Pinned outputs, memory;
    std::vector<View> inputs;
    float& loss() const { return outputs.as<float>()[0]; }
    float& correct() const { return outputs.as<float>()[1]; }
  };
  /// A step from its first pass to its result.
  struct Flight {
    std::vector<Staged> batches;  // by micro-batch
    std::int64_t step = 0, micros = 0;
    bool queued = false;  // work that reads the batches may still be under way
    Pinned numbers;       // GPU: StepParams, and the state of the scaler, behind the update
    Event done;
    StepResult result;  // CPU: at once
  };
  struct Numbers {
    StepParams params;
    ScaleState scale;
  };
  enum class Kind { alone, reducing, inference };
  void place_gradients();
  void record_programs();
  Program record_pass(Pass& pass, Write write, Kind kind, Graph::GradientHook hook = {}) const;
  Program record_update();
  void run(Executable& exe);
  nn::ForwardOptions evaluation_options() const;
  Staged& stage(const Pass& pass, Flight& flight, std::int64_t micro, std::span<const View> batch);
  std::vector<View> language_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const;
  static Evaluation sums(const Flight& flight);
  void drain();
  Pass& prepare(std::int64_t step, std::int64_t micro, bool last);
  void queue(Pass& pass, const Staged& batch);
  void fill(Pass& pass, const Staged& batch);

  models::Trainable& model_;
  StepOptions options_;
  StepParams params_;
  Stream stream_;
  std::optional<Optimizer> optimizer_;
  std::vector<const Executable*> warm_;  // ran once: captured where that helps
  std::shared_ptr<Buffer> arena_;        // the programs never run at the same time
  std::unique_ptr<parallel::SharedBatch> shared_batch_;
  std::unique_ptr<parallel::Gradients> gradients_;
  Pass first_, more_, last_, eval_;  // last_: more_ that reduces, where there are ranks and micro-batches
  std::optional<Executable> update_;
  Stream waiting_;                    // for one step while the next one is queued
  std::array<Flight, 2> flights_;     // steps take turns
  std::size_t now_ = 1, result_ = 1;  // whose passes are queued, and whose result is next or was last
  Flight evaluation_;
  std::optional<GradScaler> scaler_;
  ScaleState scale_now_;
  Observer* observer_ = nullptr;
};

}  // namespace hpcdl::train
