#pragma once
// Reads everything in a checkpoint folder and compares it with its checksums.

#include <functional>
#include <string>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

struct CheckOptions {
  /// Tensors are divided among so many callers; this is number `part` of them.
  int part = 0, parts = 1;
  /// Called with the share of the bytes that have been read, 0 to 1, and the name of the file being read.
  std::function<void(double share, const std::string& file)> progress = {};
};

/// Calls `report` with one line for each thing that is wrong: a file that is missing, torn, damaged or of another save;
/// a tensor of which the files hold some elements never or twice. It may throw, which ends the check. Memory: one chunk
/// of a tensor. Where one caller reads all tensors of a file that does not belong here, the line says where it belongs,
/// if that is in this checkpoint or in one beside it.
void check_checkpoint(const fs::path& folder, const std::function<void(const std::string&)>& report,
                      const CheckOptions& options = {});

}  // namespace hpcdl::io
