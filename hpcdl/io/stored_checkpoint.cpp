#include "hpcdl/io/stored_checkpoint.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {

std::vector<StoredTensor> stored_tensors(const TensorFolder& folder) {
  std::vector<StoredTensor> list;
  for (std::size_t i = 0; i < folder.tensors().size(); ++i) {
    const auto& info = folder.tensors()[i];
    const auto& shard = folder.shard_of(i);
    list.push_back({info.name, info.spec, {{shard.view(info), {}, &shard.file()}}});
  }
  return list;
}

StoredCheckpoint::StoredCheckpoint(const fs::path& folder) {
  const Json json = read_checkpoint_state(folder);
  info_ = checkpoint_info(folder, json);
  weights_ = TensorFolder::open(folder);
  model_ = stored_tensors(weights_);
  const auto& lists = json["optimizer"];
  files_.reserve(lists.size());  // parts point to the mappings in it
  std::unordered_map<std::string, std::size_t> index;
  for (const auto& [name, tensors] : lists.items()) {
    const auto& file = files_.emplace_back(SafeTensors::open(folder / name));
    for (const auto& t : file.tensors()) {
      const auto entry = tensors.find(t.name);
      require(entry != tensors.end(), "io", "{}: tensor {} is not in state.json", (folder / name).string(),
              shown(t.name));
      const auto [at, fresh] = index.emplace(t.name, optimizer_.size());
      if (fresh) optimizer_.push_back({t.name, {}, {}});
      auto part = part_from(*entry, t.spec.shape, (folder / "state.json").string() + ": " + shown(t.name));
      add_part(optimizer_[at->second], {file.view(t), std::move(part), &file.file()}, (folder / name).string());
    }
  }
  for (const auto& t : optimizer_) check_cover(t, folder.string());
}

}  // namespace hpcdl::io
