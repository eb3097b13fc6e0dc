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
  /// Runs the program as exe.run(s) does. `out` stays where it is until finish().
  virtual void run(const Executable& exe, Stream& s, ProgramRun& out) = 0;
  /// Behind a step: every run() so far must have its times now.
  virtual void finish() {}
};

/// Throws Error for a device whose records nobody can time in this build.
std::unique_ptr<RecordTimer> record_timer(Device device);

}  // namespace hpcdl::lab
