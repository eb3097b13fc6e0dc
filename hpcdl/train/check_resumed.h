#pragma once

#include <cstdint>

#include "hpcdl/io/checkpoint_files.h"

namespace hpcdl::train {

/// Throws Error, with file, key, what was expected and what was found, if the numbers of a checkpoint cannot be those
/// of this run. steps: of the whole run; 0: the run is counted in epochs. rows: in an epoch.
void check_resumed(const io::CheckpointInfo& found, std::int64_t steps, std::int64_t rows);

}  // namespace hpcdl::train
