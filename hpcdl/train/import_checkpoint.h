#pragma once
// From the tensors of another program to a checkpoint with which a run starts.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/stored_tensors.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// Tensors with the names of Hugging Face folders, perhaps with a prefix.
struct ImportSource {
  std::filesystem::path path;  // for messages
  std::vector<io::StoredTensor> tensors;
  /// What stands before every name, such as "model."; none: found out. Files of a decoder without its head lack the
  /// prefix of its names, as in Hugging Face folders.
  std::optional<std::string> prefix;
  std::filesystem::path companions;  // a folder with tokenizer.json and so on; empty: none
};

struct ImportReport {
  std::filesystem::path checkpoint;
  std::string prefix;                   // that was found
  std::int64_t tensors = 0, bytes = 0;  // of the model
  std::vector<std::string> unused;      // tensors that do not belong to the model: heads of tied models, optimizers
};

/// Replaces [model] of the config by the model that FOLDER/config.json describes. Throws UsageError that names the keys
/// that are set to something else, and for a model that the keys of [model] cannot describe or that cannot be trained.
void take_over_model(RunConfig& config, const std::filesystem::path& folder);

/// Writes OUT/checkpoints/step_00000000 for the model that `config` describes: a run with this config and the output
/// folder OUT starts from it. Holds a chunk of one tensor in memory. Throws Error if a tensor of the model is missing
/// or has another shape, if the source has weights in the model's layers that the model does not have, and if OUT has
/// checkpoints already.
ImportReport import_checkpoint(RunConfig& config, const ImportSource& source, const std::filesystem::path& out,
                               const std::function<void(double share, const std::string& tensor)>& progress = {});

}  // namespace hpcdl::train
