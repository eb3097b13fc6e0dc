#pragma once
// A training run that is profiled: real steps of `hpcdl train`.

#include "hpcdl/train/trainer.h"
#include "tools/profile/report.h"

namespace hpcdl::lab {

struct ProfileOptions {
  std::int64_t steps = 10;  // to record; as many plain steps run between them, for the cost of recording
  std::int64_t warmup = 3;  // steps before, which are ignored
  int rank = 0, world = 1;  // identifies the trace if this process trains alone; otherwise hooks.world does
};

struct Profiled {
  Profile profile;
  train::RunSummary summary;
};

/// Trains warmup + 2 * steps steps. Recorded and plain steps come in pairs; every second pair is in reverse order.
/// `hooks.observer` is replaced; hooks.steps_only decides whether anything is written.
Profiled profile_training(train::RunConfig& config, const ProfileOptions& options, train::Hooks hooks);

}  // namespace hpcdl::lab
