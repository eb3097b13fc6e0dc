#pragma once
// What a compressed model cannot do.

#include <string_view>

#include "hpcdl/io/file.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

/// Throws Error if the model of a folder is compressed; `area` is that of the error.
void require_uncompressed(const io::ModelConfig& config, const io::fs::path& folder, std::string_view area);
/// Throws UsageError if a GPU has no kernels for the compressed layers of a model.
void require_on_gpu(const io::ModelConfig& config);

}  // namespace hpcdl::models
