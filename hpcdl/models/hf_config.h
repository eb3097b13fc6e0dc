#pragma once
// config.json of Hugging Face model folders, for every family of language models.

#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

/// Reads FOLDER/config.json, and the end-of-text tokens from FOLDER/generation_config.json, if there is one:
/// transformers uses that file for generation, and for some chat models it alone names the end of a turn. `folder` may also
/// be a GGUF file. The result is resolved. Throws Error for an unknown family and for every feature that we would compute wrongly (other scalings of
/// rotary angles, other masks, ...).
io::ModelConfig read_hf_config(const io::fs::path& folder);
io::ModelConfig parse_hf_config(const io::Json& json, const std::string& where);

/// The inverse: a config.json that transformers loads. Precondition: resolved, vocab > 0.
io::Json make_hf_config(const io::ModelConfig& config);
void write_hf_config(const io::fs::path& folder, const io::ModelConfig& config);

}  // namespace hpcdl::models
