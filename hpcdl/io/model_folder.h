#pragma once
// Where models lie: folders of Hugging Face, and GGUF files.

#include <string>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// A folder or a GGUF file as given, model/ in the folder of a run, or the newest snapshot of a name like
/// "openai-community/gpt2" in the local cache ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub). Never touches the
/// network; throws Error when there is none.
fs::path find_model_folder(const std::string& path_or_name);

/// What is in a folder, for a message: "config.json, run.toml", "an empty folder", "nothing with that name".
std::string contents_in_words(const fs::path& folder);
/// Whether a model has a tokenizer: tokenizer.json in its folder, or one in its GGUF file.
bool has_tokenizer(const fs::path& model);

/// The config.json of a model folder. Throws Error where there is none, with what is there instead.
fs::path config_of_model(const fs::path& folder);

}  // namespace hpcdl::io
