#pragma once
// [model] init: a run that starts from the weights of a model folder.

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The folder of model.init. Throws Error if there is none of that name.
std::filesystem::path init_folder(const RunConfig& config);

/// The keys of [model] that `given` sets to another value than `found` has, in words. Keys at their defaults are not
/// compared, because a saved config lists every key.
std::vector<std::string> model_contradictions(RunConfig& given, RunConfig& found);

/// Replaces [model] by the model of the folder; without model.init it does nothing. Throws UsageError that names every
/// key of [model] that is set to something else, and Error if the folder cannot be trained.
void take_over_init(RunConfig& config);

}  // namespace hpcdl::train
