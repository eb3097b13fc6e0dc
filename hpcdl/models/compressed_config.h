#pragma once
// The compressed layers of a model in its config.json (docs/formats.md).

#include <map>
#include <string>
#include <string_view>

#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

inline constexpr const char* kCompressionKey = "hpcdl_compression";

/// By the names of their layers. Throws Error that names the layer and what is wrong with it.
std::map<std::string, nn::Structure> parse_compression(const io::Json& json, const std::string& where);
io::Json make_compression(const std::map<std::string, nn::Structure>& layers);

/// Throws Error if the model of a folder is compressed; `area` is that of the error.
void require_uncompressed(const io::ModelConfig& config, const io::fs::path& folder, std::string_view area);

/// Throws UsageError if a GPU has no kernels for the compressed layers of a model.
void require_on_gpu(const io::ModelConfig& config);

}  // namespace hpcdl::models
