#pragma once
// Gives layers of a decoder an adapter (nn/adapter.h).

#include <filesystem>
#include <functional>
#include <string>

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/adapter_options.h"
#include "hpcdl/models/base_options.h"
#include "hpcdl/models/decoder.h"

namespace hpcdl::models {

/// Fresh adapters for the layers that the options name. All other parameters are frozen, but for the modules and biases
/// that the options train. Call it once the parameters have names, and before the model is shared or has memory. Throws
/// UsageError if a name matches nothing, or if r is larger than a layer.
void adapt(Decoder& model, const AdapterOptions& options);

/// Throws UsageError if a model cannot have adapters beside its matrices, held as the options ask. `foreign`: a file or
/// folder that another program has quantised; `shared`: ranks share its layers.
void require_adaptable(const std::filesystem::path& folder, const io::ModelConfig& config, bool foreign,
                       const BaseOptions& options, bool shared);

/// Throws UsageError if the layer of this name is one that an adapter cannot change.
void require_takes_adapter(const Decoder& model, const std::string& layer);

/// Adapters for the layers for which rank(name) is not 0, and nothing frozen: for inference.
void attach(Decoder& model, const AdapterOptions& options, const std::function<std::int64_t(const std::string&)>& rank);

}  // namespace hpcdl::models
