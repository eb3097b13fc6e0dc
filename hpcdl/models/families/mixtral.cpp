// Mixtral (Jiang et al., 2024): Mistral with a mixture of experts in place of each MLP.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow mixtral_row{
    .architecture = "MixtralForCausalLM",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          parse_llama_keys(o, c, {.norm_eps = 1e-5, .context = 131072, .kv_heads = 8, .rope_theta = 1e6});
          read_window(o, c);
          c.experts = size_in(o, "num_local_experts", 8), c.chosen_experts = size_in(o, "num_experts_per_tok", 2);
          c.balance = balance_in(o);
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          write_llama_keys(c, j);
          j.update({{"sliding_window", c.window > 0 ? io::Json(c.window) : io::Json()},
                    {"num_local_experts", c.experts},
                    {"num_experts_per_tok", c.chosen_experts},
                    {"router_aux_loss_coef", c.balance}});
        },
    .decoder =
        [](const io::ModelConfig&) {
          using enum BlockPart;
          static constexpr DecoderSpec::Module block[] = {
              {q, "self_attn.q_proj"},
              {k, "self_attn.k_proj"},
              {v, "self_attn.v_proj"},
              {o, "self_attn.o_proj"},
              {router, "block_sparse_moe.gate"},
              {attention_norm, "input_layernorm"},
              {mlp_norm, "post_attention_layernorm"},
          };
          auto spec = llama_decoder();
          spec.block = block;
          spec.experts = "block_sparse_moe.experts";
          spec.expert_gate = "w1", spec.expert_up = "w3", spec.expert_down = "w2";
          return spec;
        },
    .check =
        [](const io::ModelConfig& c) {
          if (!c.weights_sum_to_one) fail_usage("model", "family mixtral has experts whose weights sum to one");
        },
    .has_windows = true,
    .mixture = true,
    .reads = {"num_local_experts", "sliding_window"},
};

}  // namespace hpcdl::models
