#pragma once

#include <optional>

#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// A log with one JSON object per line, each passed to the kernel as a whole before write() returns.
class JsonlWriter {
 public:
  /// Without `resumed_at` the file starts empty. With it, lines whose "step" is larger are removed, and so is a line
  /// that was cut short by a kill: the run will write them again.
  explicit JsonlWriter(const fs::path& path, std::optional<std::int64_t> resumed_at = {});
  /// `line` must be an object; numbers that are not finite become null.
  void write(const Json& line);

 private:
  fs::path path_;
  Fd fd_;
};

}  // namespace hpcdl::io
