#include "hpcdl/io/temp_folder.h"

#include <stdlib.h>

#include <string>
#include <system_error>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "hpcdl-XXXXXX").string();
  require(::mkdtemp(pattern.data()) != nullptr, "io", "{}: cannot make a temporary folder", pattern);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TempFolder::operator/(const std::string& name) const { return path_ / name; }

}  // namespace hpcdl::io
