#pragma once

#include <string>

namespace hpcdl::cli {

/// The commit that this program was built from; "unknown" without git. The build writes it into a separate file.
extern const char* const kCommit;

/// "hpcdl 0.1.0, commit 1a2b3c4d5e6f"
std::string version();

}  // namespace hpcdl::cli
