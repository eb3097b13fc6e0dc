#pragma once
// config.json of Hugging Face model folders, for the families gpt2 and llama, and where such folders lie.

#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::io {

/// Reads FOLDER/config.json, and the tokens that end a text from FOLDER/generation_config.json, if it exists:
/// transformers uses that file to generate, and for some chat models only it names the end of a turn. The
/// result is resolved. Throws Error for an unknown family and for every feature that we would compute wrongly (scaled
/// RoPE, sliding windows, biases in the llama MLP, ...).
ModelConfig read_hf_config(const fs::path& folder);
ModelConfig parse_hf_config(const Json& json, const std::string& where);

/// The inverse: a config.json that transformers loads. Precondition: resolved, vocab > 0.
Json make_hf_config(const ModelConfig& config);
void write_hf_config(const fs::path& folder, const ModelConfig& config);

/// A folder as given, model/ in the folder of a run, or the newest snapshot of a name like "openai-community/gpt2" in
/// the local cache
/// ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub). Never uses the network; throws Error if there is none.
fs::path find_model_folder(const std::string& path_or_name);

/// The config.json of a model folder. Throws Error if there is none, with the names of files that are there instead.
fs::path config_of_model(const fs::path& folder);

}  // namespace hpcdl::io
