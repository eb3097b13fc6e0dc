#pragma once
// From a checkpoint to a model folder that transformers loads, or to a distributed checkpoint of PyTorch.

#include <cstdint>
#include <functional>
#include <string>

#include "hpcdl/io/stored_checkpoint.h"

namespace hpcdl::models {

struct ExportOptions {
  bool dcp = false;           // the tensors as torch.distributed.checkpoint.save() writes them
  DType dtype = DType::none;  // of floating-point tensors; none: as they are stored
  /// Called before each tensor with the share of the bytes that are done, 0 to 1.
  std::function<void(double share, const std::string& tensor)> progress = {};
};

struct ExportReport {
  std::int64_t tensors = 0, bytes = 0;
};

/// Writes config.json, the tensors of the model and the tokenizer's files as the folder `out`, which is whole or absent.
/// Holds a chunk of one tensor in memory. Throws Error if the checkpoint has no config.json, if a number does not fit
/// into the type, or for what quant::StagedFolder refuses.
ExportReport export_folder(const io::StoredCheckpoint& from, const io::fs::path& out,
                           const ExportOptions& options = {});

}  // namespace hpcdl::models
