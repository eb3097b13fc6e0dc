#pragma once
// How fast a run is: of the steps since the last line of metrics, and of all its steps.

#include "hpcdl/core/clock.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

class Meter {
 public:
  /// samples: of a step, over all ranks, in the units of the task. light: seconds of a step at the speed of light; < 0:
  /// not known. wire: bytes that this rank sends in a step.
  Meter(const TrainStep& step, std::int64_t samples, double light, double wire)
      : step_(step), samples_(samples), light_(light), wire_(wire) {}

  /// The loop begins now.
  void begin() { begin_ = Clock::now(), moved_ = step_.disk_traffic(); }
  /// A step is done: the seconds that it took, and those in which it waited for data.
  void add(double seconds, double waited);
  /// Rate and times of the bar, which is drawn after each step; the step is number n.step of n.steps.
  void fill_recent(StepNumbers& n) const;
  /// Rates and shares of the interval that ends now.
  void fill_interval(StepNumbers& n);
  void begin_interval() { interval_seconds_ = interval_waited_ = 0, interval_steps_ = 0; }
  /// The times of the run, and its rates in samples of `in_row` units each.
  void fill(RunSummary& summary, std::int64_t in_row) const;

 private:
  void fill_moved(StepNumbers& n);

  const TrainStep& step_;
  std::int64_t samples_;
  double light_, wire_;
  Clock::time_point begin_ = Clock::now();  // the run's time has evaluations and saves, seconds_ has not
  std::int64_t steps_ = 0, interval_steps_ = 0;
  double seconds_ = 0, interval_seconds_ = 0, interval_waited_ = 0;
  double recent_ = 0;                  // of a step: a moving average over about ten steps
  parallel::ExchangeTimes exchanged_;  // before this interval
  DiskTraffic moved_;                  // before this interval
};

}  // namespace hpcdl::train
