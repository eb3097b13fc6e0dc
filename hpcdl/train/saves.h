#pragma once
// The files of a run: its config and its checkpoints.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "hpcdl/core/clock.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/io/train_state.h"
#include "hpcdl/train/run_schedule.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

/// Where a run stands between two steps: what its checkpoints hold besides tensors.
struct Standing {
  std::int64_t step = 0;        // steps done
  std::int64_t seen = 0;        // samples in these steps, over all ranks, in the units of the task
  data::LoaderState at;         // the sample with which the next step begins
  double loss = 0;              // of the last step: the mean over its targets
  Score interval, epoch;        // since the last line of metrics; of the epoch
  bool epoch_done = false;      // the last step ended an epoch
  bool evaluation_due = false;  // an evaluation was left out, because the run was asked to stop

  /// As a checkpoint holds it. `rows_of_step`: samples of a step, over all ranks. The scores are kept if `classes`.
  io::TrainState to_state(std::uint64_t seed, std::int64_t rows_of_step, bool classes) const;
  static Standing from_state(const io::TrainState& state);
};

class Saves {
 public:
  /// Makes the folder of the checkpoints, or throws Error. Everything that is passed must outlive this. Collective, as
  /// all methods are that say nothing else.
  Saves(RunConfig& config, const Hooks& hooks, const parallel::Mesh& mesh, Task& task, TrainStep& step,
        Progress& progress);

  /// Takes over the checkpoint that the config names, if there is one; otherwise the run is at step 0. steps: of the
  /// whole run; 0: it is counted in epochs. Nothing has been written before this: a run that cannot be resumed stays
  /// unchanged.
  Standing resume(std::int64_t steps);
  /// Writes config.toml. Not collective: by the leading rank.
  void write_config() const;
  /// Saves unless this step is saved, and reports it if `say`. With checkpoint.asynchronous a thread goes on writing after
  /// this returns, unless the caller asks to `wait`.
  void save(const Standing& now, bool wait, bool say);
  /// Waits for what is being written, if anything is; throws what prevented it.
  void finish();
  /// Not collective: this rank's thread has ended, and finish() is due.
  bool written() const { return checkpoints_.ready(); }
  bool failed() const { return checkpoints_.failed(); }
  /// Seconds that the run has waited for saves since the last call.
  double take_stall() { return std::exchange(stall_, 0); }

  /// The ways of the run: of the checkpoint that was taken over, until those of this run are set.
  const std::optional<io::UsedWays>& ways() const { return ways_; }
  void set_ways(std::optional<io::UsedWays> ways) { ways_ = std::move(ways); }

  /// Seconds since the last save, or since begin().
  double age() const { return seconds_since(last_); }
  void begin() { last_ = Clock::now(); }
  /// Makes the memory for saves that do not wait, which a thread does while the first steps run.
  void prepare();
  /// In words, for the error that ends a run.
  std::string last_one() const;

 private:
  void warn_of_other_batch(std::int64_t before) const;
  void done(const std::filesystem::path& folder, bool say);

  const RunConfig& config_;
  const Hooks& hooks_;
  const parallel::Mesh& mesh_;
  Task& task_;
  TrainStep& step_;
  Progress& progress_;
  std::string toml_;
  io::GroupRanks ranks_;
  io::Checkpoints checkpoints_;
  std::optional<io::UsedWays> ways_;
  std::int64_t saved_ = -1, saving_ = -1;  // step of the last checkpoint, and of the one that is being written
  double stall_ = 0;
  Clock::time_point last_ = Clock::now();
};

}  // namespace hpcdl::train
