#pragma once
// How the time of a record is measured: on a CPU by reading a clock between records. On a GPU the same times come from
// its own counters, after the step has been queued.

#include <memory>

#include "hpcdl/stream.h"
#include "tools/profile/steps.h"

namespace hpcdl::lab {

class RecordTimer {
 public:
  virtual ~RecordTimer() = default;
  /// Prepares for timing a program later. Does not run it.
  virtual void prepare(const Instance&, Stream&) {}
  /// Called before a recorded step; not part of it.
  virtual void begin() {}
  /// Runs the program like exe.run(s). `out` must stay valid until finish().
  virtual void run(const Instance& exe, Stream& s, ProgramRun& out) = 0;
  /// Called after a step: every run() so far must receive its times now. False if they are not available: the step is
  /// then ignored.
  virtual bool finish(StepTrace&) { return true; }
  /// In words, if that affects the meaning of the times.
  virtual std::string how() const { return ""; }
};

/// Throws Error for a device on which this build cannot time records.
std::unique_ptr<RecordTimer> record_timer(Device device);

/// For a GPU: by CUPTI, which reports when each kernel of a captured program ran, or, if it is missing, by an event
/// after every record of a program that is walked. `why_events`: the reason why CUPTI is not used.
std::unique_ptr<RecordTimer> gpu_timer(Device device);

}  // namespace hpcdl::lab
