#pragma once
// The loop of a training run: steps, evaluations, saves, and what ranks agree on between them.

#include <memory>
#include <optional>

#include "hpcdl/train/meter.h"
#include "hpcdl/train/run_log.h"
#include "hpcdl/train/saves.h"

namespace hpcdl::train {

/// The parts of a run that live as long as its loop.
class Loop {
 public:
  /// Makes data, model and programs, and takes over the last checkpoint. Collective. `config` must outlive this.
  Loop(RunConfig& config, const Hooks& hooks);
  /// Trains to the end, or until the run is asked to stop. Collective.
  RunSummary go();

 private:
  void make_step(Device device);
  void open_files();
  void choose_ways(std::shared_ptr<const Ways> tuned);
  void introduce();
  void advise_on_wires();
  void one_step();
  void queue_passes(std::int64_t step);
  bool may_go_ahead() const;
  bool evaluates_at(std::int64_t step, bool epoch_done) const;
  bool saves_at(std::int64_t step) const;
  bool logs_at(std::int64_t step) const;
  void fetch_batch();
  StepNumbers numbers() const;
  void report();
  void evaluate();
  void save(bool wait);
  void choose_saves(const MemoryAdvice& advice);
  void agree();
  void say_stopped();
  void finish();
  [[noreturn]] void stop_non_finite(std::string_view what);
  void overflowed(const StepResult& result);
  static bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

  bool leads() const { return world().rank() == 0; }  // logs and writes
  const comm::Group& world() const { return mesh_.world(); }
  /// Passes over the data so far.
  double epoch() const {
    return static_cast<double>(now_.at.epoch) +
           static_cast<double>(now_.at.index) / static_cast<double>(task_.data().rows());
  }

  RunConfig& config_;
  Hooks hooks_;
  parallel::Mesh mesh_;
  Progress progress_;
  Pool pool_;
  Task task_;
  std::int64_t rows_of_step_ = 0;
  std::unique_ptr<models::Trainable> model_;
  std::unique_ptr<TrainStep> train_;
  std::optional<Saves> saves_;  // none if the run is steps only
  RunLog log_;
  std::optional<Meter> meter_;
  Schedule schedule_;
  std::int64_t steps_ = 0;  // of the whole run
  Standing now_;
  std::int64_t save_at_ = -1;     // the step after which the time between checkpoints has passed, as rank 0 says
  bool waits_for_saves_ = false;  // there is no memory for asynchronous ones
  bool asked_ = false;            // some rank was asked to stop
  double norm_ = 0, lr_ = 0;      // of the last step
  /// A step whose passes are queued.
  struct Queued {
    data::LoaderState end;  // the sample after its last
    std::int64_t valid = 0;
    bool epoch_done = false;
  };
  std::optional<Queued> next_;  // of step now_.step
  RunSummary summary_;
};

}  // namespace hpcdl::train
