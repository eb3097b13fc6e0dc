#pragma once

#include <string>
#include <vector>

namespace hpcdl::cli {

/// Runs this program again with other words and returns what it printed on stdout: a process of its own has a memory
/// peak of its own. Throws Error when it does not end with 0.
std::string run_self(const std::vector<std::string>& words);

}  // namespace hpcdl::cli
