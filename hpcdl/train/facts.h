#pragma once
// What must be the same on all ranks of a run; see parallel/agreement.h.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The instruction set in use, which HPCDL_ISA may have chosen.
parallel::Fact instruction_set();
/// The instruction set and every key of the config except those that may differ by rank; for train.device only its
/// kind.
std::vector<parallel::Fact> config_facts(RunConfig& config);
/// Only [model], after it has been completed from the data.
std::vector<parallel::Fact> model_facts(RunConfig& config);

/// Collective. Throws parallel::Disagreement unless all ranks of `world` have the same config_facts() and `more`.
void expect_same_config(RunConfig& config, const comm::Group& world, const std::vector<parallel::Fact>& more);

/// CRC-32C of the size and the bytes of a file; for a large file, of 4096 evenly spread blocks.
std::uint32_t file_checksum(const std::filesystem::path& path);

}  // namespace hpcdl::train
