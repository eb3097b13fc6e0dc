#include "hpcdl/quant/staged_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl::quant {
namespace fs = io::fs;

namespace {

bool belongs_to_model(const fs::path& path) {
  static constexpr std::string_view kNames[] = {"config.json",
                                                "generation_config.json",
                                                "tokenizer.json",
                                                "tokenizer_config.json",
                                                "special_tokens_map.json",
                                                "added_tokens.json",
                                                "vocab.json",
                                                "merges.txt",
                                                "model.safetensors.index.json"};
  std::error_code ignored;
  const std::string name = path.filename().string();
  return fs::is_regular_file(path, ignored) &&
         ((name.starts_with("model") && name.ends_with(".safetensors")) ||
          std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames));
}

}  // namespace

StagedFolder::StagedFolder(fs::path target) : target_(std::move(target)) {
  if (!target_.has_filename()) target_ = target_.parent_path();
  require(target_.has_filename() && target_.filename() != "." && target_.filename() != "..", "quant",
          "{}: expected the name of a new folder", target_.string());
  std::error_code ignored;
  if (fs::exists(target_, ignored)) {
    require(fs::is_directory(target_, ignored), "quant", "{}: expected a folder, found a file", target_.string());
    for (const auto& path : io::list_folder(target_))
      require(belongs_to_model(path), "quant",
              "{}: the folder holds other things than a model, as {}: choose another name, or empty it",
              target_.string(), path.filename().string());
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
