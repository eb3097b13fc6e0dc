#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/io/config_table.h"

namespace hpcdl::cli {

/// The config of a run from files, environment and words. Rank 0 warns of variables HPCDL_... that nothing reads: they
/// are likely mistyped, but may be somebody else's.
void load(io::ConfigTable& table, const std::vector<std::filesystem::path>& files,
          const std::vector<std::string>& words);

}  // namespace hpcdl::cli
