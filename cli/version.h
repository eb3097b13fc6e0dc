#pragma once

#include <string>

namespace hpcdl::cli {

/// That this program was built from; "unknown" where there was no git. In a file of its own, made in the build.
extern const char* const kCommit;

/// "hpcdl 0.1.0, commit 1a2b3c4d5e6f"
std::string version();

}  // namespace hpcdl::cli
