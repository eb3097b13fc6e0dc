// Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases for q, k and v.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow qwen2_row{
    .architecture = "Qwen2ForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.context = 32768, .kv_heads = 32});
          if (o.get_or("use_sliding_window", false)) expect_no_window(o, c, 4096);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j["use_sliding_window"] = false;
        },
    .decoder =
        [](const io::ModelConfig&) {
          auto spec = llama_decoder();
          spec.qkv_bias = true;
          return spec;
        },
    .reads = {"sliding_window"},
};

}  // namespace hpcdl::models
