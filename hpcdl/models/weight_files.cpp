#include "hpcdl/models/weight_files.h"

#include "hpcdl/core/convert.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/models/gguf/weights.h"
#include "hpcdl/models/packed_weights.h"

namespace hpcdl::models {

std::unique_ptr<WeightFiles> WeightFiles::open(const io::fs::path& path, const io::ModelConfig& config,
                                               const DecoderSpec& decoder) {
  if (io::is_gguf(path)) return std::make_unique<GgufWeights>(path, config, decoder);
  if (const auto packed = pack_config_of(path)) return std::make_unique<PackedWeights>(path, *packed);
  return std::make_unique<FolderWeights>(path);
}

std::vector<std::string> FolderWeights::names() const {
  std::vector<std::string> names;
  for (const auto& t : folder_.tensors()) names.push_back(t.name);
  return names;
}

void FolderWeights::read(const std::string& name, const Tensor& to, Pool*) const {
  convert_elements(to, folder_.at(name));
}

std::vector<const io::MappedFile*> FolderWeights::files() const {
  std::vector<const io::MappedFile*> files;
  for (const auto& shard : folder_.shards()) files.push_back(&shard.file());
  return files;
}

}  // namespace hpcdl::models
