#pragma once
// The training run: from a config to a model folder, resumable at any step.

#include <functional>
#include <memory>
#include <vector>

#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

struct Hooks {
  Console console;  // of rank 0; the others are silent
  /// Ranks that train together; [parallel] says how.
  comm::Group world = {};
  /// The shortest time in seconds that a program can take on the device of the run; null: sol_percent is left out.
  std::function<double(const Program&)> speed_of_light;
  /// Called once, before the first step, with its programs, which may be run; weights and optimizer state must not
  /// change. Returns the ways in which a GPU computes fastest; null: none are known.
  std::function<std::shared_ptr<const Ways>(const std::vector<const Instance*>& programs)> tuned_ways = {};
  std::function<void(std::int64_t step)> after_step;  // 1-based number of the step just done and logged
  Observer* observer = nullptr;                       // watches every step; outlives the run
  std::int64_t host_memory_limit = 0;  // of all processes of the host or the job together: a cgroup's; 0: none
  /// Ctrl-C stops the run like SIGTERM: it saves, and this command resumes it. Otherwise Ctrl-C ends the process at
  /// once.
  bool stops_on_interrupt = false;
  /// Other facts that must be the same on all ranks, and are compared together with the config: program, verb.
  std::vector<parallel::Fact> facts = {};
  std::string command = {};  // the command that resumes the run; empty: "the same command"
  /// Steps only: no metrics, checkpoints, evaluation or model; `output` is not touched, and nothing is resumed.
  bool steps_only = false;
};

struct RunSummary {
  std::filesystem::path model;   // folder; empty when stopped
  std::int64_t first_step = 0;   // steps done before this run; > 0 when resumed
  std::int64_t step = 0;         // steps done now
  bool interrupted = false;      // stopped only by SIGINT
  bool stopped = false;          // stopped by a signal, and saved after the running step: on a GPU that may be the one
                                 // after the last that was reported
  double loss = 0;               // of the last step
  double eval_loss = 0;          // at the end; NaN without evaluation text
  std::int64_t eval_tokens = 0;  // number of targets of that mean: tokens or images
  bool images = false;           // a classifier of images was trained; text otherwise
  double accuracy = -1, eval_accuracy = -1;  // of images: share of right answers in the last epoch or what was done of
                                             // it, and in the last evaluation
  double seconds = 0, sol_percent = -1;      // of the steps of this run, without evaluation and saves
  double tokens_per_second = 0,
         samples_per_second = 0;  // of all ranks; a sample is a row of a batch. No tokens if images are trained on
  double comm_seconds = 0, hidden_percent = -1;  // in which gradients were exchanged, and the share of it that no rank
                                                 // waited for; GPU: see parallel.time_exchange
  std::int64_t parameters = 0, arena_bytes = 0;
};

/// `output` must be set; resolves `config` in place. Throws UsageError and Error with what to do.
RunSummary run(RunConfig& config, const Hooks& hooks);

/// Removes the files of a run from its output folder, and nothing else.
void forget_run(const std::filesystem::path& folder);

/// How much of the available memory the run would need, and what would reduce it. Prepares the data, and needs almost
/// no memory itself.
MemoryAdvice plan_run(RunConfig& config, const Hooks& hooks);

/// Optimizer arguments and pass options of a config.
StepOptions step_options(const RunConfig& config);
/// The groups of the mesh that a step needs.
void take_ranks(StepOptions& options, const parallel::Mesh& mesh);

}  // namespace hpcdl::train
