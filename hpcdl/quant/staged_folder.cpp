#include "hpcdl/quant/staged_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::quant {
namespace fs = io::fs;

namespace {

bool belongs_to_model(const fs::path& path) {
  std::error_code ignored;
  std::string name = path.filename().string();
  if (name.starts_with(io::kAsidePrefix)) name.erase(0, io::kAsidePrefix.size());  // was being written
  return fs::is_regular_file(path, ignored) &&
         ((name.starts_with("model") && name.ends_with(".safetensors")) || name == "config.json" ||
          name == "model.safetensors.index.json" || std::ranges::find(kCompanions, name) != std::end(kCompanions));
}

/// Throws if it is anything else than a folder with files of a model.
void require_replaceable(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(folder, ignored))) return;
  require(fs::is_directory(folder, ignored), "quant", "{}: expected a folder, found a file", folder.string());
  for (const auto& path : io::list_folder(folder))
    require(belongs_to_model(path), "quant",
            "{}: the folder contains files that do not belong to a model, such as {}: choose another name, or empty "
            "the folder",
            folder.string(), path.filename().string());
}

fs::path named(fs::path target) {
  if (!target.has_filename()) target = target.parent_path();
  require(target.has_filename() && target.filename() != "." && target.filename() != "..", "quant",
          "{}: expected the name of a new folder", target.string());
  if (target.has_parent_path()) io::make_folder(target.parent_path());
  return target;
}

}  // namespace

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : kCompanions)
    if (std::error_code ignored; fs::exists(from / name, ignored))
      io::write_file_atomic(to / name, io::read_file(from / name));
}

StagedFolder::Lock::Lock(const fs::path& target)
    : path(io::aside_of(target).string() + ".lock"), file(io::open_aside(path, target)) {}

StagedFolder::Lock::~Lock() {
  std::error_code ignored;
  fs::remove(path, ignored);
}

StagedFolder::StagedFolder(fs::path target)
    : target_(named(std::move(target))), aside_(io::aside_of(target_)), lock_(target_) {
  require_replaceable(target_);
  require_replaceable(aside_);
  std::error_code error;
  fs::remove_all(aside_, error);
  if (error) io::fail_file(aside_, "remove", error.value());
  unfinished_ = Unfinished(aside_);
  io::make_folder(aside_);
  unfinished_.created();
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!aside_.empty()) fs::remove_all(aside_, ignored);
}

void StagedFolder::commit() {
  io::sync_folder(aside_);
  unfinished_.finishing();
  std::error_code ignored;
  if (!fs::exists(target_, ignored)) {
    io::rename_durably(aside_, target_);
    unfinished_ = {};
    aside_.clear();
    return;
  }
  // The old and the new folder exchange names in one step; the destructor removes the old one.
  if (::renameat2(AT_FDCWD, aside_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0)
    io::fail_file(target_, "replace the folder", errno);
  io::sync_folder(target_.parent_path().empty() ? "." : target_.parent_path());
}

}  // namespace hpcdl::quant
