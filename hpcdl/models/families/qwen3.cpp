// Qwen3 (Yang et al., 2025): Llama with an RMSNorm for each head of q and k, and heads of any size.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow qwen3_row{
    .architecture = "Qwen3ForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.context = 32768, .kv_heads = 32});
          c.head_dim = size_in(o, "head_dim", 128);
          c.attention_bias = o.get_or("attention_bias", false);
          read_qwen_windows(o, c);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j["attention_bias"] = c.attention_bias;
          write_qwen_windows(c, j);
        },
    .decoder =
        [](const io::ModelConfig& c) {
          using enum BlockPart;
          static constexpr DecoderSpec::Module block[] = {
              {q, "self_attn.q_proj"},
              {k, "self_attn.k_proj"},
              {v, "self_attn.v_proj"},
              {o, "self_attn.o_proj"},
              {q_norm, "self_attn.q_norm"},
              {k_norm, "self_attn.k_norm"},
              {gate, "mlp.gate_proj"},
              {up, "mlp.up_proj"},
              {down, "mlp.down_proj"},
              {attention_norm, "input_layernorm"},
              {mlp_norm, "post_attention_layernorm"},
          };
          auto spec = llama_decoder();
          spec.block = block;
          spec.qkv_bias = spec.o_bias = c.attention_bias;
          return spec;
        },
    .chooses_attention_bias = true,
    .has_windows = true,
    .reads = {"attention_bias", "sliding_window"},
};

}  // namespace hpcdl::models
