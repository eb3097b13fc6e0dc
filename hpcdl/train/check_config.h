#pragma once

#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// Throws UsageError where something is set that means nothing for such a run, or that cannot be together.
void check_config(RunConfig& config);

}  // namespace hpcdl::train
