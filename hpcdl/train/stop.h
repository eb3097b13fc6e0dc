#pragma once
// Being asked to stop. SIGTERM and SIGUSR1 mean: save at the next step and ask to be requeued; a second one ends the
// process at once. SIGINT means the same only where asked for. So does the end of a Slurm job, a minute ahead of it.

#include <chrono>
#include <cstdlib>

namespace hpcdl::train {

/// The same signal again within this time is the same asking: timeout(1) and others ask a process, and then its group.
inline constexpr std::chrono::milliseconds kSameAsking{300};

/// Installs handlers while it lives. Ranks that are threads of one process share them: those of the first stand until
/// the last goes.
class StopSignals {
 public:
  /// job_end: in Unix seconds, as Slurm says it; null: none.
  explicit StopSignals(bool on_interrupt, const char* job_end = std::getenv("SLURM_JOB_END_TIME"));
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The signal that arrived (SIGTERM also when the job is about to end), or 0.
  static int requested();
};

}  // namespace hpcdl::train
