#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "hpcdl/io/config_table.h"

namespace hpcdl::cli {

/// The config of a run from files, environment and words. Rank 0 warns of variables HPCDL_... that are not known: they
/// are probably mistyped, but may belong to another program. A misspelt option of the verb is refused by name.
void load(io::ConfigTable& table, const std::vector<std::filesystem::path>& files,
          const std::vector<std::string>& words, const Command& verb);

/// For a verb that takes keys of a run only together with -c, and was given `word` without it. Throws UsageError.
[[noreturn]] void refuse_keys(const std::string& verb, const std::string& word, const Command& command);

}  // namespace hpcdl::cli
