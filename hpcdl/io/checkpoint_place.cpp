#include "hpcdl/io/checkpoint_place.h"

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::io {

bool is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "DONE", ignored) || fs::exists(folder / "state.json", ignored);
}

std::vector<ListedCheckpoint> kept_checkpoints(const fs::path& folder) {
  for (const auto& place : {folder, folder / "checkpoints"})
    if (auto kept = list_checkpoints(place); !kept.empty()) return kept;
  fail("io", "{}: expected a checkpoint (state.json, DONE), a folder with step_... or the output of a run, found {}",
       folder.string(), contents_in_words(folder));
}

CheckpointPlace find_checkpoint(const fs::path& folder) {
  if (is_checkpoint(folder)) return {folder, {}};
  auto kept = kept_checkpoints(folder);
  const auto whole = std::ranges::find_if(kept, [](const ListedCheckpoint& c) { return c.info.has_value(); });
  require(whole != kept.end(), "io", "{}: all {} checkpoints are damaged; the newest: {}", folder.string(), kept.size(),
          kept[0].flaw);
  auto path = whole->path;
  return {std::move(path), std::move(kept)};
}

}  // namespace hpcdl::io
