#include "cli/version.h"

#include <fmt/format.h>

namespace hpcdl::cli {

std::string version() { return fmt::format("hpcdl " HPCDL_VERSION ", commit {}", kCommit); }

}  // namespace hpcdl::cli
