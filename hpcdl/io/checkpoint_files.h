#pragma once
// The files of a checkpoint folder, and how they are written, checked and read:
//   model.safetensors        or several files and their index: whole tensors, whichever ranks held their parts
//   optim-rankK.safetensors  parts of tensors, as rank K held them; what several ranks hold is written by one of them
//   config.toml              and files of the caller
//   state.json               state of the run; size and CRC-32C of every file; every tensor's dtype, shape, CRC, place
//   DONE                     CRC-32C of state.json; written last: a folder without it is not a checkpoint
// A checkpoint loads on any number of ranks, for any split of their tensors.
// The model part has the form of Hugging Face folders; with a config.json from the caller, transformers loads it
// unchanged.

#include <functional>
#include <span>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/io/ranks.h"
#include "hpcdl/io/train_state.h"

namespace hpcdl::io {

struct NamedTensor {
  std::string name;
  Tensor tensor;
  Part part = {};  // its part of the whole tensor of this name
};

struct CheckpointContent {
  std::vector<NamedTensor> model, optimizer;  // in host memory, any strides; stored dense
  std::string config_toml;
  std::function<void(const fs::path& folder)> extra;  // rank 0: writes further files (config.json, tokenizer.json, ...)
  std::int64_t max_file_bytes = 5'000'000'000;        // of the model part
  // Of an asynchronous save, in its threads: what each rank says, and rank 0, which throws if these do not go together.
  std::function<std::string()> facts = {};
  std::function<void(std::span<const std::string>)> accept = {};
};

/// Whether the memory of a tensor keeps its contents until a checkpoint is written, so that it need not be copied.
using Stays = std::function<bool(const NamedTensor&)>;

/// Collective: fills a folder that all ranks see, and syncs all of it. Tensors are spread over the ranks, which write
/// at the same time. state and serial are those of rank 0; `serial` orders the checkpoints of a run by the time they
/// were written.
void write_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                      const CheckpointContent& content, Ranks& ranks);

struct CheckpointInfo {
  fs::path path;
  TrainState state;
  std::int64_t serial = 0;
  std::int64_t ranks = 1;  // that wrote it
};

/// Reads only the marker and state.json. Throws Error if either is missing or damaged.
CheckpointInfo read_checkpoint_info(const fs::path& folder);
/// Reads everything and compares every checksum; throws Error that names the first error. With `parts`
/// callers, each reads its share.
CheckpointInfo verify_checkpoint(const fs::path& folder, int part = 0, int parts = 1);

/// Fills the tensors, or this rank's parts of them; the optimizer's with zeros if there are none at step 0. Throws
/// Error if the checkpoint lacks one, holds others, or differs in shape or dtype.
void load_checkpoint(const fs::path& folder, std::span<const NamedTensor> model,
                     std::span<const NamedTensor> optimizer);

}  // namespace hpcdl::io
