// Qwen3-MoE (Yang et al., 2025): Qwen3 with a mixture of experts in place of each MLP. Models in which
// some layers have a single MLP are refused.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow qwen3_moe_row{
    .architecture = "Qwen3MoeForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.context = 32768, .kv_heads = 4});
          c.attention_bias = o.get_or("attention_bias", false);
          if (o.get_or("use_sliding_window", false)) read_window(o, c, 4096);
          c.ffn = size_in(o, "moe_intermediate_size", 768);
          c.experts = size_in(o, "num_experts", size_in(o, "num_local_experts", 128));
          c.chosen_experts = size_in(o, "num_experts_per_tok", 8);
          c.weights_sum_to_one = o.get_or("norm_topk_prob", false);
          c.balance = balance_in(o);
          const auto step = size_in(o, "decoder_sparse_step", 1);
          const io::Json* single = o.find("mlp_only_layers");
          require(step == 1 && (!single || single->empty()), "io",
                  "{}: expected a mixture of experts in every layer, found decoder_sparse_step = {} and "
                  "mlp_only_layers = {}",
                  o.where(), step, single ? single->dump() : "[]");
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j.update({{"attention_bias", c.attention_bias},
                    {"use_sliding_window", c.window > 0},
                    {"sliding_window", c.window > 0 ? io::Json(c.window) : io::Json()},
                    {"moe_intermediate_size", c.ffn},
                    {"num_experts", c.experts},
                    {"num_experts_per_tok", c.chosen_experts},
                    {"norm_topk_prob", c.weights_sum_to_one},
                    {"router_aux_loss_coef", c.balance},
                    {"decoder_sparse_step", 1},
                    {"mlp_only_layers", io::Json::array()}});
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
              {router, "mlp.gate"},
              {attention_norm, "input_layernorm"},
              {mlp_norm, "post_attention_layernorm"},
          };
          auto spec = llama_decoder();
          spec.block = block;
          spec.experts = "mlp.experts";
          spec.qkv_bias = spec.o_bias = c.attention_bias;
          return spec;
        },
    .chooses_attention_bias = true,
    .has_windows = true,
    .mixture = true,
    .reads = {"attention_bias", "num_experts", "num_local_experts", "sliding_window"},
};

}  // namespace hpcdl::models
