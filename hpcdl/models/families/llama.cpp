// Llama (Touvron et al., 2023): RMSNorm, rotary positions (rotate-half), grouped-query attention, SwiGLU, no biases by
// default.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow llama_row{
    .architecture = "LlamaForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c);
          c.attention_bias = o.get_or("attention_bias", false);
          c.mlp_bias = o.get_or("mlp_bias", false);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j.update({{"attention_bias", c.attention_bias}, {"mlp_bias", c.mlp_bias}});
        },
    .decoder =
        [](const io::ModelConfig& c) {
          auto spec = llama_decoder();
          spec.qkv_bias = spec.o_bias = c.attention_bias;
          spec.mlp_bias = c.mlp_bias;
          return spec;
        },
    .chooses_attention_bias = true,
    .reads = {"attention_bias", "mlp_bias"},
};

}  // namespace hpcdl::models
