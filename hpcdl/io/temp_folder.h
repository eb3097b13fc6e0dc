#pragma once
// A folder for one test, removed afterwards.

#include <stdlib.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"

namespace hpcdl::io {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "hpcdl-XXXXXX").string();
    require(::mkdtemp(pattern.data()) != nullptr, "io", "{}: cannot make a temporary folder", pattern);
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

}  // namespace hpcdl::io
