#pragma once

#include "hpcdl/lab/probe/probe.h"

namespace hpcdl::lab {

/// Writes a file of `bytes` into `folder`, reads it in each way for about `seconds` in total, and removes it. What
/// cannot be measured is described in the notes; nothing throws.
Disk probe_disk(const std::filesystem::path& folder, std::int64_t bytes, double seconds, const OnProgress& progress);

}  // namespace hpcdl::lab
