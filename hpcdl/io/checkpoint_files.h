#pragma once
// What lies in one checkpoint folder, how it is written, checked and read:
//   model.safetensors (or shards and their index), optim-rank0.safetensors, config.toml, files of the caller,
//   state.json  state of the run; size and CRC-32C of every file; dtype, shape and CRC-32C of every tensor
//   DONE        CRC-32C of state.json; written last, so without it the folder is no checkpoint
// The model part is what Hugging Face folders hold; with a config.json from the caller transformers loads it as it is.

#include <functional>
#include <span>
#include <vector>

#include "hpcdl/core/tensor.h"
#include "hpcdl/io/train_state.h"

namespace hpcdl::io {

struct NamedView {
  std::string name;
  View view;
};
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct CheckpointContent {
  std::vector<NamedView> model, optimizer;  // any strides; stored dense
  std::string config_toml;
  std::function<void(const fs::path& folder)> extra;  // writes further files (config.json, tokenizer.json, ...)
};

/// Fills an empty folder and syncs all of it. `serial` orders the checkpoints of a run by when they were written.
void write_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                      const CheckpointContent& content);

struct CheckpointInfo {
  fs::path path;
  TrainState state;
  std::int64_t serial = 0;
};

/// Marker and state.json only. Throws Error when either is missing or damaged.
CheckpointInfo read_checkpoint_info(const fs::path& folder);
/// Reads everything and compares every checksum; throws Error that names the first thing that is wrong.
CheckpointInfo verify_checkpoint(const fs::path& folder);

/// Fills the tensors. Throws Error when the checkpoint lacks one, holds others, or differs in shape or dtype.
void load_checkpoint(const fs::path& folder, std::span<const NamedTensor> model,
                     std::span<const NamedTensor> optimizer);

}  // namespace hpcdl::io
