#pragma once
// The training run: from a config to a model folder, resumable at any step.

#include <functional>
#include <vector>

#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

struct Hooks {
  Console console;  // of rank 0; the others are silent
  /// Ranks that train together; [parallel] says how.
  comm::Group world = {};
  /// Least seconds a program can take on the device of the run; null: sol_percent is left out.
  std::function<double(const Program&)> speed_of_light;
  /// Once, before the first step: its programs. They may be run; weights and optimizer state must stay as they are.
  std::function<void(const std::vector<const Instance*>& programs)> before_steps = {};
  std::function<void(std::int64_t step)> after_step;  // 1-based number of the step just done and logged
  Observer* observer = nullptr;                       // watches every step; outlives the run
  std::int64_t host_memory_limit = 0;  // of all processes of the host or the job together: a cgroup's; 0: none
  /// Ctrl-C stops the run as SIGTERM does: saved, and for this command to go on. Else it ends the process at once.
  bool stops_on_interrupt = false;
  /// What else must be the same on all ranks, and is compared with the config: program, verb.
  std::vector<parallel::Fact> facts = {};
  std::string command = {};  // that goes on, as to be typed; empty: "the same command"
  /// Steps only: no metrics, checkpoints, evaluation or model; `output` is not touched, and nothing is resumed.
  bool steps_only = false;
};

struct RunSummary {
  std::filesystem::path model;  // folder; empty when stopped
  std::int64_t first_step = 0;  // steps done before this run; > 0 when resumed
  std::int64_t step = 0;        // steps done now
  bool interrupted = false;     // stopped, and asked to by nothing but SIGINT
  bool stopped = false;  // asked to by a signal; saved after the step that was under way: on a GPU that may be the one
                         // after the last that was reported
  double loss = 0;       // of the last step
  double eval_loss = 0;  // at the end; NaN without evaluation text
  std::int64_t eval_tokens = 0;              // targets that it is the mean of: tokens or images
  bool images = false;                       // a classifier of images was trained; text otherwise
  double accuracy = -1, eval_accuracy = -1;  // of images: share of right answers in the last epoch or what was done of
                                             // it, and in the last evaluation
  double seconds = 0, sol_percent = -1;      // of the steps of this run, evaluation and saves apart
  double tokens_per_second = 0,
         samples_per_second = 0;  // of all ranks; a sample: a row of a batch. No tokens where images are trained on
  double comm_seconds = 0, hidden_percent = -1;  // in which gradients were exchanged, and the share of it that nobody
                                                 // waited for; GPU: see parallel.time_exchange
  std::int64_t parameters = 0, arena_bytes = 0;
};

/// `output` must be set; resolves `config` in place. Throws UsageError and Error with what to do.
RunSummary run(RunConfig& config, const Hooks& hooks);

/// Removes what a run has left in its output folder, and nothing else that is there.
void forget_run(const std::filesystem::path& folder);

/// What the run would take of the memory there is, and what would make it less. Prepares the data, and takes next to no
/// memory itself.
MemoryAdvice plan_run(RunConfig& config, const Hooks& hooks);

/// Optimizer arguments and pass options of a config.
StepOptions step_options(const RunConfig& config);

}  // namespace hpcdl::train
