#pragma once
// For verbs that write a whole model folder.

#include <filesystem>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl::cli {

inline constexpr const char* kForce = "Replace the model that is already in the folder";

/// Throws UsageError if `out` is the model that is read, or if it holds anything and `force` is not set.
inline void check_out_folder(std::string_view verb, const std::filesystem::path& from, const std::string& out,
                             bool force) {
  namespace fs = std::filesystem;
  if (!fs::exists(out)) return;
  if (fs::equivalent(from, out)) fail_usage(verb, "--out is the model itself: choose another folder");
  const bool empty = fs::is_directory(out) && fs::is_empty(out);
  if (!force && !empty)
    fail_usage(verb, "{} exists: choose another folder, or give --force to replace the model in it", out);
}

}  // namespace hpcdl::cli
