#pragma once

#include <string>
#include <vector>

#include "hpcdl/io/checkpoint.h"

namespace hpcdl::io {

/// What a user means by the name of a folder of checkpoints.
struct CheckpointPlace {
  fs::path checkpoint;                 // the one that was named, or the newest whole one
  std::vector<ListedCheckpoint> kept;  // all in the same folder, the newest first; empty if one was named
};

/// Whether the folder holds files of a checkpoint, perhaps incomplete.
bool is_checkpoint(const fs::path& folder);
/// The checkpoints of a folder of them, or of the output folder of a run, the newest first. Throws Error where there is
/// none, with what is there instead.
std::vector<ListedCheckpoint> kept_checkpoints(const fs::path& folder);
/// `folder` is one checkpoint, a folder of checkpoints, or the output folder of a run. Throws Error where there is
/// none, and if all are damaged.
CheckpointPlace find_checkpoint(const fs::path& folder);

}  // namespace hpcdl::io
