#pragma once
// A training run that is watched: the steps of `hpcdl train`, taken for real.

#include "hpcdl/lab/profile/report.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab {

struct ProfileOptions {
  std::int64_t steps = 10;  // to record; as many plain ones are taken between them, to know what recording costs
  std::int64_t warmup = 3;  // steps before that nobody looks at
  int rank = 0, world = 1;  // what the trace is called where this process trains alone; else hooks.world says
};

struct Profiled {
  Profile profile;
  train::RunSummary summary;
};

/// Trains warmup + 2 * steps steps. Recorded and plain steps come in pairs, of which every second one is turned round.
/// `hooks.observer` is taken; hooks.steps_only says whether anything is written.
Profiled profile_training(train::RunConfig& config, const ProfileOptions& options, train::Hooks hooks);

}  // namespace hpcdl::lab
