#pragma once
// The compressed layers of a model in its config.json (docs/formats.md).

#include <map>
#include <string>

#include "hpcdl/io/json.h"
#include "hpcdl/nn/structure.h"

namespace hpcdl::quant {

inline constexpr const char* kCompressionKey = "hpcdl_compression";

/// How each layer is compressed, by its name.
using Structures = std::map<std::string, nn::Structure>;

/// Throws Error that names the layer and what is wrong with it.
Structures parse_structures(const io::Json& json, const std::string& where);
io::Json to_json(const nn::Structure& structure);
io::Json to_json(const Structures& layers);

}  // namespace hpcdl::quant
