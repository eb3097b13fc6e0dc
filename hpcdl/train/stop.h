#pragma once
// Requests to stop. SIGTERM and SIGUSR1 mean: save at the next step and ask to be requeued. SIGINT (Ctrl-C) means:
// save at the next step and end, if the caller wants that. So does the end of a Slurm job, a minute before. A second
// signal ends the process at once.

#include <chrono>
#include <cstdlib>

namespace hpcdl::exit_code {
inline constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells have it: stopped by Ctrl-C, and saved
}

namespace hpcdl::train {

/// The same signal within this time repeats the request: timeout(1) and others signal a process, and then its group.
/// So is SIGTERM after SIGINT: torchrun and others pass on as SIGTERM the SIGINT that the terminal has already sent to
/// the ranks.
inline constexpr std::chrono::milliseconds kSameAsking{300};

/// Installs handlers for its lifetime. Ranks that are threads of one process share them, and so do nested
/// objects: the handlers of a signal stay until the last object that watches it is destroyed.
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
