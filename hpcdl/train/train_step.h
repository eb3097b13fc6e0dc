#pragma once
// One optimizer step of any model and any optimizer as three recorded programs: forward and backward that overwrite the
// gradients (first micro-batch), the same that adds to them (the others), and the update: gradient norm, clip,
// optimizer. A fourth evaluates. Where ranks share the batch, the pass of the last micro-batch also sums the gradients
// over them, so every rank makes the same update.

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/train_state.h"
#include "hpcdl/pipe/runner.h"
#include "hpcdl/train/non_finite.h"
#include "hpcdl/train/observer.h"
#include "hpcdl/train/step_programs.h"

namespace hpcdl::train {

/// The result of an optimizer step.
struct StepResult {
  double loss = 0;                // sum over all valid targets of all ranks
  std::int64_t valid_tokens = 0;  // of all ranks
  double correct = 0;    // targets that were the model's first choice, of all ranks; 0 if the model does not count them
  double grad_norm = 0;  // before clipping; if it is not finite, nothing has been changed
  bool finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
};

/// What has moved between memory and a disk, since the beginning.
struct DiskTraffic {
  std::int64_t bytes = 0;     // in both directions
  double waited_seconds = 0;  // in which nothing was computed
};

/// Of one micro-batch, on this rank.
struct Evaluation {
  double loss = 0, correct = 0;  // as in StepResult
};

/// The state of dynamic loss scaling after the last update().
using ScaleState = GradScaler::State;

class TrainStep {
 public:
  /// The model needs gradients and must outlive this. It is moved to `device` if it is not there.
  TrainStep(models::Trainable& model, Pool& pool, const StepOptions& options, Device device = {});
  ~TrainStep();

  /// The tensors of a micro-batch, which evaluate() takes, too.
  const std::vector<models::InputSpec>& inputs() const { return inputs_; }
  const std::vector<models::InputSpec>& evaluation_inputs() const { return evaluation_inputs_; }

  /// Forward and backward of micro-batch number `micro` (0 overwrites the gradients) of 0-based step `step`. batch:
  /// inputs() in their order, contiguous: in host memory, which is copied, or on the GPU, where it must stay as it is
  /// until result() of the step. On a GPU this only queues work. Ranks exchange gradients only in the `last` one.
  void accumulate(std::span<const View> batch, std::int64_t step, std::int64_t micro, bool last = true);
  /// For models whose inputs are tokens and targets, (B, T) each; target -1 is ignored.
  void accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t step,
                  std::int64_t micro, bool last = true);
  /// Scales the gradients by 1 / valid_tokens (targets that count, of this rank; the sum over ranks counts), clips,
  /// updates the weights, and waits for all of the step.
  StepResult update(double lr, std::int64_t valid_tokens);
  /// update() in two halves, between which a GPU need not be idle: the first only queues the work; passes of the
  /// next step may be queued, but not its update, before result() has waited for this one. A step that is not finite
  /// changes nothing, whatever was queued after it.
  void queue_update(double lr, std::int64_t valid_tokens);
  StepResult result();
  /// Collective with StepOptions::zero: reads what other ranks have updated since the last pass that did so. Before
  /// evaluations, of which ranks may make different numbers.
  void gather();
  /// Forward only, without what only training uses: dropout, mixtures, smoothed targets, statistics of the batch. It
  /// gathers if that has not been done. Collective if values are sharded().
  Evaluation evaluate(std::span<const View> batch);
  Evaluation evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);

  /// The ways in which its programs compute on a GPU, to be set before the first pass.
  void set_ways(std::shared_ptr<const Ways> ways) { stream_.set_ways(std::move(ways)); }
  /// GPU: chooses the ways of everything that the programs compute, without running them, and returns them. On a CPU
  /// there are none.
  std::map<WayKey, WayNote> choose_ways();

  /// From now on the observer runs the programs; null: no observer.
  void watch(Observer* observer) { observer_ = observer; }

  /// Waits for the micro-batches since the last update(), and returns the sum of their losses on this rank.
  double loss();
  bool scales_loss() const { return programs_.scaler() != nullptr; }
  ScaleState scale_state() const { return scale_now_; }
  void set_scale_state(const ScaleState& state);
  /// Adds the scale of the loss to what a checkpoint holds, and takes it over again; nothing unless the loss is scaled.
  void save_scale(io::TrainState& to) const;
  void load_scale(const io::TrainState& from);

  /// Why the result of the last step was not finite: the first bad tensor. Runs its micro-batches again,
  /// record by record. Each rank does so independently, except that it is collective if values are sharded(); if only
  /// other ranks have bad numbers, it says that.
  NonFinite explain_non_finite();

  /// Records, operands and costs of one optimizer step with `micro_batches` micro-batches.
  std::vector<const Instance*> programs(std::int64_t micro_batches) const;
  /// Weights (with the model's buffers) and optimizer state in host memory, as checkpoints hold them: as of the last
  /// fetch(), and taken over by store(). With StepOptions::zero, optimizer_state() is the part of this rank.
  std::vector<io::NamedTensor> weights() const { return model_.state().model_files(); }
  std::vector<io::NamedTensor> optimizer_state() const { return stored(programs_.optimizer().moments()); }
  /// Of weights() and optimizer_state(): those that change only in fetch(), as do the copies of what a GPU holds.
  io::Stays stays() const;
  /// Copies weights and optimizer state to the host, and back; on a CPU only what files store in another order, the
  /// rest is the same memory. Collective with StepOptions::zero: each rank first reads what the others have updated.
  void fetch();
  void store();
  /// fetch() while later passes run: only the next update waits for the copies, on the GPU. Returns what waits for them,
  /// which a thread calls before it reads the host memory; this must outlive it. No other fetch before. On a CPU it is
  /// fetch(), and there is nothing to wait for.
  std::function<void()> fetch_behind();
  /// GPU: a thread page-locks the host memory of fetch(), while the first steps run. Call it once at most.
  void prepare_fetch();
  /// Collective with StepOptions::zero, after fetch(): calls f() while StateEntry::host of all values is whole.
  void with_whole_values(const std::function<void()>& f) const;
  /// Ranks that share the batch: all take over the running statistics of the first. Evaluations and checkpoints see
  /// those.
  void share_buffers();
  /// Of activations, on this rank.
  std::int64_t arena_bytes() const {
    return arena_->bytes() + (runner_ ? runner_->frame_bytes() + eval_runner_->frame_bytes() : 0);
  }
  DiskTraffic disk_traffic() const;
  /// Bytes that the last optimizer step copied between a GPU and the host because state or activations lie there; 0 on a
  /// CPU.
  std::int64_t host_bytes() const;
  const Stream& stream() const { return stream_; }
  bool on_gpu() const { return stream_.device().is_cuda(); }
  /// The ranks that share the batch; null with one rank.
  const parallel::DataParallel* ranks() const { return programs_.ranks(); }
  /// See StepPrograms.
  bool passes_together() const { return programs_.passes_together(); }
  /// How often the passes of a step were run again because tokens did not fit (StepOptions::capacity).
  std::int64_t runs_again() const { return runs_again_; }

 private:
  /// One micro-batch: the results of its pass and the inputs that came from the host, in memory that the device copies
  /// directly from and to.
  struct Staged {
    Pinned outputs, memory;
    std::vector<View> inputs;
    float& output(std::size_t number) const { return outputs.as<float>()[number]; }
    float loss() const { return output(0); }
    float correct() const { return output(1); }
  };
  /// State of a step from its first pass to its result.
  struct Flight {
    std::vector<Staged> batches;  // by micro-batch
    std::int64_t step = 0, micros = 0;
    bool whole = false;      // all micro-batches of the step are there
    bool queued = false;     // work that reads the batches may still be running
    StepParams params = {};  // of the update
    Pinned numbers;          // GPU: after the update
    Event done;
    StepResult result;  // on a CPU: immediately
  };
  struct Numbers {
    StepParams params;
    ScaleState scale;
    float dropped;  // tokens, of all ranks
  };
  void make_instances();
  void make_stages();
  void run_stages(pipe::Runner& runner, const Flight& flight, std::int64_t micros);
  void set_micro(std::int64_t step, std::int64_t micro);
  /// Sums over the ranks that have different layers, of which only the last one has a loss.
  Evaluation sum_over_stages(const Evaluation& mine) const;
  void run(Instance& exe);
  Staged& stage(std::span<const models::InputSpec> inputs, Flight& flight, std::int64_t micro,
                std::span<const View> batch);
  std::vector<View> language_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const;
  static Evaluation sums(const Flight& flight);
  void queue_again(const Flight& flight);
  void run_update(Flight& flight);
  void wait_for(Flight& flight);
  float dropped(const Flight& flight) const;
  bool run_until_all_fits();
  void drain();
  void end_pinning();
  std::optional<NonFinite> bad_weight() const;
  Instance& prepare(std::int64_t step, std::int64_t micro, bool last);
  void queue(Instance& exe, const Staged& batch);
  void queue_tree(const Flight& flight);
  void fill(const Instance& exe, const Staged& batch);

  StepParams params_;
  Stream stream_;
  StepPrograms programs_;
  std::vector<models::InputSpec> inputs_, evaluation_inputs_;
  models::Trainable& model_;
  const StepOptions& options_;
  std::shared_ptr<Buffer> arena_;  // the programs never run at the same time
  // last_: more_ that also reduces, with several ranks and micro-batches
  std::optional<Instance> first_, more_, last_, eval_, update_, gather_;
  std::optional<Instance> host_update_;                 // on the CPU, after update_ (StepPrograms::host_update)
  std::optional<Instance> clear_;                       // of a pipeline
  std::optional<Instance> reduce_;                      // of a pipeline or a tree
  std::vector<std::optional<Instance>> adds_;           // of a tree, by the number of sums
  std::unique_ptr<pipe::Runner> runner_, eval_runner_;  // of a pipeline; then there are no passes
  bool gathered_ = true;                                // whether this rank has the values that others have updated
  Stream waiting_;                                      // for one step while the next one is queued
  Stream fetching_;                                     // of fetch_behind()
  Event fetched_;                                       // its end
  std::vector<PinnedRange> pinned_;                     // after pinning_
  std::thread pinning_;
  std::array<Flight, 2> flights_;  // steps take turns
  std::size_t now_ = 1,
              result_ = 1;  // the step whose passes are queued, and the step whose result comes next or came last
  Flight evaluation_;
  ScaleState scale_now_;
  std::int64_t runs_again_ = 0;
  Observer* observer_ = nullptr;
};

}  // namespace hpcdl::train
