// Phi-3 and Phi-4 (Abdin et al., 2024): Llama with q, k and v in one matrix, and gate and up in another; a part of each
// head may be rotated, and all layers may see a window of keys.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow phi3_row{
    .architecture = "Phi3ForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.norm_eps = 1e-5, .context = 4096, .partial_rotary = true});
          read_window(o, c);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          if (c.window > 0) j["sliding_window"] = c.window;
          j["pad_token_id"] = nullptr;  // otherwise transformers uses 32000, which exceeds small vocabularies
        },
    .decoder =
        [](const io::ModelConfig&) {
          using enum BlockPart;
          static constexpr DecoderSpec::Module block[] = {
              {qkv, "self_attn.qkv_proj"},         {o, "self_attn.o_proj"},
              {gate_up, "mlp.gate_up_proj"},       {down, "mlp.down_proj"},
              {attention_norm, "input_layernorm"}, {mlp_norm, "post_attention_layernorm"},
          };
          auto spec = llama_decoder();
          spec.block = block;
          return spec;
        },
    .has_windows = true,
    .reads = {"sliding_window", "partial_rotary_factor"},
};

}  // namespace hpcdl::models
