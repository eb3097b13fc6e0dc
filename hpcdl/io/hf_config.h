#pragma once
// config.json of Hugging Face model folders, for the families gpt2 and llama, and where such folders lie.

#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::io {

/// Reads FOLDER/config.json, and from FOLDER/generation_config.json, if there is one, what ends a text: transformers
/// generates by that file, and of some chat models it alone names the end of a turn. The result is resolved. Throws
/// Error for an unknown family and for every feature that we would compute wrongly (scaled RoPE, sliding windows,
/// biases in the llama MLP, ...).
ModelConfig read_hf_config(const fs::path& folder);
ModelConfig parse_hf_config(const Json& json, const std::string& where);

/// The other way: a config.json that transformers loads. Precondition: resolved, vocab > 0.
Json make_hf_config(const ModelConfig& config);
void write_hf_config(const fs::path& folder, const ModelConfig& config);

/// A folder as given, model/ in the folder of a run, or the newest snapshot of a name like "openai-community/gpt2" in
/// the local cache
/// ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub). Never touches the network; throws Error when there is none.
fs::path find_model_folder(const std::string& path_or_name);

/// The config.json of a model folder. Throws Error where there is none, with what is there instead.
fs::path config_of_model(const fs::path& folder);

}  // namespace hpcdl::io
