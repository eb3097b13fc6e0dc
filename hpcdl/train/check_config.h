#pragma once

#include <string_view>

#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// Throws UsageError if a key is set that does not apply to such a run, or if two keys contradict each other.
void check_config(RunConfig& config);
/// What keeps the state of the optimizer of such a run from lying in that tier, in words; empty: nothing does.
std::string_view cannot_offload(const RunConfig& config, Tier tier);
/// The same for weights and gradients of a GPU in host memory.
std::string_view cannot_keep_weights_on_host(const RunConfig& config);
/// Sets train.batch from train.global_batch, if that is given, for a run on that many ranks. Throws UsageError if
/// the ranks do not divide it, or if both are given.
void share_global_batch(RunConfig& config, int world);

}  // namespace hpcdl::train
