// Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases for q, k and v.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow qwen2_row{
    .architecture = "Qwen2ForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.context = 32768, .kv_heads = 32});
          read_qwen_windows(o, c);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          write_qwen_windows(c, j);
        },
    .decoder =
        [](const io::ModelConfig&) {
          auto spec = llama_decoder();
          spec.qkv_bias = true;
          return spec;
        },
    .has_windows = true,
    .reads = {"sliding_window"},
};

}  // namespace hpcdl::models
