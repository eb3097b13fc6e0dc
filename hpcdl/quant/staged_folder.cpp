#include "hpcdl/quant/staged_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>

#include "hpcdl/core/error.h"

namespace hpcdl::quant {
namespace fs = io::fs;

StagedFolder::StagedFolder(fs::path target) : target_(std::move(target)) {
  if (!target_.has_filename()) target_ = target_.parent_path();
  require(target_.has_filename() && target_.filename() != "." && target_.filename() != "..", "quant",
          "{}: expected the name of a new folder", target_.string());
  std::error_code ignored;
  if (fs::exists(target_, ignored)) {
    require(fs::is_directory(target_, ignored), "quant", "{}: expected a folder, found a file", target_.string());
    require(fs::is_empty(target_, ignored) || fs::exists(target_ / "config.json", ignored), "quant",
            "{}: the folder holds other things than a model: choose another name, or empty it", target_.string());
  }
  aside_ = target_.parent_path() / fmt::format(".tmp-{}-{}", target_.filename().string(), ::getpid());
  fs::remove_all(aside_, ignored);
  io::make_folder(aside_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!aside_.empty()) fs::remove_all(aside_, ignored);
}

void StagedFolder::commit() {
  io::sync_folder(aside_);
  std::error_code ignored;
  if (!fs::exists(target_, ignored)) {
    io::rename_durably(aside_, target_);
    aside_.clear();
    return;
  }
  // The old folder and the new one change names in one step; the destructor removes what is then aside.
  if (::renameat2(AT_FDCWD, aside_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0)
    io::fail_file(target_, "replace the folder", errno);
  io::sync_folder(target_.parent_path().empty() ? "." : target_.parent_path());
}

}  // namespace hpcdl::quant
