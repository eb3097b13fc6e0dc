#pragma once
// A folder for one test, removed afterwards.

#include "hpcdl/io/file.h"

namespace hpcdl::io {

class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const;

 private:
  fs::path path_;
};

}  // namespace hpcdl::io
