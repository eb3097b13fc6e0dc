#pragma once
// Being asked to stop. SIGTERM and SIGUSR1 mean: save at the next step and ask to be requeued; a second one ends the
// process at once. SIGINT means the same only where asked for.

namespace hpcdl::train {

/// Installs handlers while it lives. Ranks that are threads of one process share them: those of the first stand until the last goes.
class StopSignals {
 public:
  explicit StopSignals(bool on_interrupt);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The signal that arrived, or 0.
  static int requested();
};

}  // namespace hpcdl::train
