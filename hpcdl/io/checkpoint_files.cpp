#include "hpcdl/io/checkpoint_files.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/number_within.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24;

void verify_files(const fs::path& folder, const Json& files) {
  for (const auto& [name, entry] : files.items()) {
    const fs::path path = folder / name;
    const JsonObject o(entry, (folder / "state.json").string() + ": " + shown(name));
    const auto want = need_within(o, "bytes", 0, std::numeric_limits<std::int64_t>::max());
    const auto crc = need_crc32c(o);
    const Fd fd = open_for_reading(path);
    require(file_size(fd, path) == want, "io", "{}: expected {} bytes, found {}", path.string(), want,
            file_size(fd, path));
    require(file_entry(path)["crc32c"] == crc, "io", "{}: the checksum does not match: damaged on disk", path.string());
  }
}

/// Every `parts`-th tensor, beginning at `part`. `state`: the file that `tensors` come from.
void verify_tensors(const TensorFolder& file, const Json& tensors, const std::string& state, int part, int parts) {
  require(file.tensors().size() == tensors.size(), "io", "{}: expected {} tensors, found {}", file.path().string(),
          tensors.size(), file.tensors().size());
  for (auto i = static_cast<std::size_t>(part); i < file.tensors().size(); i += static_cast<std::size_t>(parts)) {
    const TensorInfo& info = file.tensors()[i];
    const auto it = tensors.find(info.name);
    require(it != tensors.end(), "io", "{}: tensor {} is not in state.json", file.path().string(), shown(info.name));
    const JsonObject o(*it, fmt::format("{}: tensor {}", state, shown(info.name)));
    const auto want = need_crc32c(o);
    const auto& mapped = file.shard_of(i).file();
    const auto crc = crc32c(
        mapped.bytes().subspan(static_cast<std::size_t>(info.offset), static_cast<std::size_t>(info.spec.bytes())));
    mapped.drop(info.offset, info.spec.bytes());
    require(crc == want, "io", "{}: tensor {}: the checksum does not match: damaged on disk", file.path().string(),
            shown(info.name));
  }
}

CheckpointInfo info_of(const fs::path& folder, const Json& json) {
  const std::string where = (folder / "state.json").string();
  const JsonObject o(json, where);
  return {folder, train_state_from(json, where), need_within(o, "serial", 0, kMaxCount),
          o.find("ranks") ? need_within(o, "ranks", 1, kMaxRanks) : 1};
}

/// A tensor, or a part of one, in one of the files.
struct StoredPart {
  View view;
  Part part;
};
using StoredTensors = std::map<std::string, std::vector<StoredPart>>;

/// Fills the tensors of this rank from the parts in the files.
void load_into(const fs::path& folder, const StoredTensors& stored, std::span<const NamedTensor> tensors,
               const char* what) {
  for (const auto& [name, tensor, part] : tensors) {
    const auto it = stored.find(name);
    require(it != stored.end(), "io",
            "{}: the {} needs tensor {}, which the checkpoint does not have: resume with the configuration that it was "
            "saved with",
            folder.string(), what, shown(name));
    const Spec whole = whole_spec(tensor.spec(), part, shown(name));
    std::vector<Box> boxes;
    for (const auto& stored_part : it->second) {
      const Spec found = whole_spec(stored_part.view.spec(), stored_part.part, shown(name));
      require(found == whole, "io",
              "{}: {} tensor {}: expected {}, found {}: resume with the configuration that it was saved with",
              folder.string(), what, shown(name), to_string(whole), to_string(found));
      const auto more = boxes_of(whole.shape, stored_part.part);
      boxes.insert(boxes.end(), more.begin(), more.end());
    }
    if (const auto flaw = find_flaw(whole.shape, boxes))
      fail("io", "{}: {} tensor {}: the files hold {} {} times, expected once", folder.string(), what, shown(name),
           elements(*flaw, whole.shape), flaw->times);
    for (const auto& stored_part : it->second) copy_common(tensor, part, stored_part.view, stored_part.part);
  }
  require(stored.size() == tensors.size(), "io",
          "{}: expected the {} tensors of the {}, found {}: resume with the configuration that it was saved with",
          folder.string(), tensors.size(), what, stored.size());
}

}  // namespace

CheckpointInfo read_checkpoint_info(const fs::path& folder) { return info_of(folder, read_checkpoint_state(folder)); }

CheckpointInfo verify_checkpoint(const fs::path& folder, int part, int parts) {
  const Json json = read_checkpoint_state(folder);
  verify_files(folder, json["files"]);
  const std::string state = (folder / "state.json").string();
  verify_tensors(TensorFolder::open(folder), json["model"], state, part, parts);
  for (const auto& [name, tensors] : json["optimizer"].items())
    verify_tensors(TensorFolder::open(folder / name), tensors, state, part, parts);
  return info_of(folder, json);
}

void load_checkpoint(const fs::path& folder, std::span<const NamedTensor> model,
                     std::span<const NamedTensor> optimizer) {
  const Json json = read_checkpoint_state(folder);
  const auto weights = TensorFolder::open(folder);
  StoredTensors stored;
  for (const auto& t : weights.tensors()) stored[t.name].push_back({weights.at(t.name), {}});
  load_into(folder, stored, model, "model");

  std::vector<SafeTensors> files;
  StoredTensors moments;
  for (const auto& [name, tensors] : json["optimizer"].items()) {
    files.push_back(SafeTensors::open(folder / name));
    for (const auto& t : files.back().tensors()) {
      const auto entry = tensors.find(t.name);
      require(entry != tensors.end(), "io", "{}: tensor {} is not in state.json", (folder / name).string(),
              shown(t.name));
      moments[t.name].push_back(
          {files.back().view(t),
           part_from(*entry, t.spec.shape, (folder / "state.json").string() + ": " + shown(t.name))});
    }
  }
  load_into(folder, moments, optimizer, "optimizer");
}

}  // namespace hpcdl::io
