#pragma once
// state.json and DONE of a checkpoint folder, shared by its writer and its reader.

#include <string>

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// 1: one rank, whole tensors; "optimizer" lists the tensors of optim-rank0.safetensors.
/// 2: any number of ranks; "optimizer" lists files, each with its tensors and which pieces of one dim they are.
/// 3: these are boxes of the whole tensor.
inline constexpr std::int64_t kCheckpointFormat = 3;

/// {"bytes": ..., "crc32c": ...}; for a safetensors file only of the header, since the tensors have checksums of their
/// own.
Json file_entry(const fs::path& path);
/// Syncs every file below `folder` that `files` does not name yet, and adds it with its relative path.
void list_other_files(const fs::path& folder, Json& files);
/// Writes state.json and then DONE.
void seal_checkpoint(const fs::path& folder, const Json& state);
/// Adds everything to a folder that holds the tensors, and seals it. `tensors`: the objects "model", "optimizer", and
/// perhaps "files" with those that need no look. Of `content`, config_toml and extra count.
void finish_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial, int ranks,
                       const CheckpointContent& content, const Json& tensors);
/// What `state`, the state.json of a folder, says. Throws Error if a number in it is not possible.
CheckpointInfo checkpoint_info(const fs::path& folder, const Json& state);
/// Throws Error if either is missing, damaged, or from a newer program. Always returns the newest format.
Json read_checkpoint_state(const fs::path& folder);

}  // namespace hpcdl::io
