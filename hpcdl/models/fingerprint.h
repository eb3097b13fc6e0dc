#pragma once

#include <string>

#include "hpcdl/io/safetensors.h"

namespace hpcdl::models {

/// Identifies the tensors of a model folder, however they are divided into files: a CRC-32C of their names, specs and of
/// evenly spaced samples of their bytes, as eight hexadecimal digits. It reads at most 64 KiB of a tensor.
std::string fingerprint(const io::TensorFolder& folder);
/// The same of a model's files: of a folder, or of the blocks in a GGUF file.
std::string fingerprint(const io::fs::path& model);

}  // namespace hpcdl::models
