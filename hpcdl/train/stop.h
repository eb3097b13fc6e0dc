#pragma once
// Being asked to stop. SIGTERM and SIGUSR1 mean: save at the next step and ask to be requeued. SIGINT (Ctrl-C) means:
// save at the next step and end, where asked for. So does the end of a Slurm job, a minute ahead of it. A second signal
// ends the process at once.

#include <chrono>
#include <cstdlib>

namespace hpcdl::exit_code {
inline constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells have it: stopped by Ctrl-C, and saved
}

namespace hpcdl::train {

/// The same signal again within this time is the same asking: timeout(1) and others ask a process, and then its group.
/// So is SIGTERM after SIGINT: torchrun and others pass on in this way what the terminal has told the ranks already.
inline constexpr std::chrono::milliseconds kSameAsking{300};

/// Installs handlers while it lives. Ranks that are threads of one process share them, and so do objects within each
/// other: the handlers of a signal stand until the last object that watches it goes.
class StopSignals {
 public:
  enum class Interrupt { ends, stops, stops_and_says_so };  // what SIGINT does; the last one: a line on standard error

  /// job_end: in Unix seconds, as Slurm says it; null: none.
  explicit StopSignals(Interrupt interrupt = Interrupt::ends, const char* job_end = std::getenv("SLURM_JOB_END_TIME"));
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The signal that arrived (SIGTERM also when the job is about to end), or 0.
  static int requested();

 private:
  bool interrupt_;
};

}  // namespace hpcdl::train
