#pragma once
// The tensors in the files of a checkpoint, opened and checked for completeness, but not read.

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {

class StoredCheckpoint {
 public:
  /// Throws Error if a file is missing or damaged as far as headers and state.json tell, or unless the files hold
  /// every element of every tensor exactly once. Checksums of tensors are not compared: see checkpoint_check.h.
  explicit StoredCheckpoint(const fs::path& folder);

  const CheckpointInfo& info() const { return info_; }
  /// In the order of the files.
  const std::vector<StoredTensor>& model() const { return model_; }
  const std::vector<StoredTensor>& optimizer() const { return optimizer_; }

 private:
  CheckpointInfo info_;
  TensorFolder weights_;
  std::vector<SafeTensors> files_;
  std::vector<StoredTensor> model_, optimizer_;
};

/// The tensors of a model folder, each in one part.
std::vector<StoredTensor> stored_tensors(const TensorFolder& folder);

}  // namespace hpcdl::io
