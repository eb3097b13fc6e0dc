#pragma once
// The choices that a training run or a generation needs, without running it.

#include "hpcdl/train/config.h"
#include "tools/tune/session.h"

namespace hpcdl::lab::tune {

/// Choices for the step of a run. Throws UsageError for an invalid config.
Wishes wishes_of_training(train::RunConfig& config, Pool& pool, Device device);
/// Choices for prompts of any length and for new tokens, with the model in this folder.
Wishes wishes_of_generation(const std::filesystem::path& folder, Pool& pool, Device device);

}  // namespace hpcdl::lab::tune
