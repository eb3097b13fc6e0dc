#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/safetensors_writer.h"

namespace hpcdl::io {

/// Writes the tensors that were declared. Returns the CRC-32C of each by its name.
using WriteTensors = std::function<std::map<std::string, std::uint32_t>(TensorFolderWriter& writer)>;

/// Fills a folder with a checkpoint of step 0, whose tensors never have to be in memory together. It has no optimizer:
/// a run that loads it starts with moments of zeros. Of `content`, config_toml, extra and max_file_bytes count.
void write_first_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                            const std::vector<NamedSpec>& model, const WriteTensors& write,
                            const CheckpointContent& content);

}  // namespace hpcdl::io
