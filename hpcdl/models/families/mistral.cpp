// Mistral (Jiang et al., 2023): Llama without biases; all layers may see a window of keys.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow mistral_row{
    .architecture = "MistralForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.context = 131072, .kv_heads = 8});
          read_window(o, c, 4096);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j["sliding_window"] = c.window > 0 ? io::Json(c.window) : io::Json();
        },
    .decoder = [](const io::ModelConfig&) { return llama_decoder(); },
    .has_windows = true,
    .reads = {"sliding_window"},
};

}  // namespace hpcdl::models
