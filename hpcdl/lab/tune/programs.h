#pragma once
// What a training run or a generation would ask for, without either.

#include "hpcdl/lab/tune/session.h"
#include "hpcdl/train/config.h"

namespace hpcdl::lab::tune {

/// Of the step of a run. Throws UsageError for a config that describes none.
Wishes wishes_of_training(train::RunConfig& config, Pool& pool, Device device);
/// Of prompts of any length and of new tokens, by the model in this folder.
Wishes wishes_of_generation(const std::filesystem::path& folder, Pool& pool, Device device);

}  // namespace hpcdl::lab::tune
