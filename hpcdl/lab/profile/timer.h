#pragma once
// How the time of a record is taken: on a CPU by a clock between records. A GPU fills the same times from its own
// counters, after the step has been queued.

#include <memory>

#include "hpcdl/core/stream.h"
#include "hpcdl/lab/profile/steps.h"

namespace hpcdl::lab {

class RecordTimer {
 public:
  virtual ~RecordTimer() = default;
  /// A program that will be timed later: what is to be found out about it is found out now. Nothing of it runs.
  virtual void prepare(const Instance&, Stream&) {}
  /// Before a step that is recorded; not part of it.
  virtual void begin() {}
  /// Runs the program as exe.run(s) does. `out` stays where it is until finish().
  virtual void run(const Instance& exe, Stream& s, ProgramRun& out) = 0;
  /// Behind a step: every run() so far must have its times now. False when they could not be had: the step does not
  /// count.
  virtual bool finish(StepTrace&) { return true; }
  /// In words, where it matters for what the times mean.
  virtual std::string how() const { return ""; }
};

/// Throws Error for a device whose records nobody can time in this build.
std::unique_ptr<RecordTimer> record_timer(Device device);

/// Of a GPU: by CUPTI, which tells when each kernel of a captured program ran, or, where it is missing, by an event
/// behind every record of a program that is walked. `why_events`: what kept CUPTI out.
std::unique_ptr<RecordTimer> gpu_timer(Device device);

}  // namespace hpcdl::lab
