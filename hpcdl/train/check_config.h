#pragma once

#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// Throws UsageError where something is set that means nothing for such a run, or that cannot be together.
void check_config(RunConfig& config);
/// Sets train.batch from train.global_batch, where that is given, for a run on so many ranks. Throws UsageError where
/// it does not divide, or where both are given.
void share_global_batch(RunConfig& config, int world);

}  // namespace hpcdl::train
