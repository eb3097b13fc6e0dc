#pragma once
// The verbs of hpcdl ckpt, which is declared in verb.h.

#include "cli/verb.h"
#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::cli::ckpt {

void add_show(const Command& verb, Run& run);
void add_verify(const Command& verb, Run& run);
void add_diff(const Command& verb, Run& run);
void add_export(const Command& verb, Run& run);
void add_import(const Command& verb, Run& run);

inline constexpr const char* kCheckpointHelp =
    "A checkpoint, a folder of checkpoints, or the output of a run: the newest whole one";

/// Exit codes of verify and of diff.
inline constexpr int kFlawed = 1, kDiffers = 1;

/// Bytes that the elements of whole tensors take.
std::int64_t bytes_of(const std::vector<io::StoredTensor>& tensors);

}  // namespace hpcdl::cli::ckpt
