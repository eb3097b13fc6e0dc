// GPT-2 (Radford et al., 2019): learned positions, LayerNorm, packed q/k/v, GELU MLP, biases, tied embeddings. Its
// linear layers are transformers' Conv1D, whose weights are stored (in, out).

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow gpt2_row{
    .architecture = "GPT2LMHeadModel",
    .parse =
        [](const io::JsonObject& o, io::ModelConfig& c) {
          // transformers accepts the alias names, too (GPT2Config.attribute_map), and they take precedence.
          const auto size = [&](const char* key, const char* alias, std::int64_t fallback) {
            return size_in(o, alias, size_in(o, key, fallback));
          };
          c.layers = size("n_layer", "num_hidden_layers", 12), c.heads = size("n_head", "num_attention_heads", 12);
          c.width = size("n_embd", "hidden_size", 768);
          c.context = size("n_positions", "max_position_embeddings", 1024);
          c.vocab = size_in(o, "vocab_size", 50257), c.ffn = size_in(o, "n_inner", 0);
          c.norm_eps = o.get_or("layer_norm_epsilon", 1e-5);
          c.activation = activation_in(o, "activation_function", "gelu_new");
        },
    .write =
        [](const io::ModelConfig& c, io::Json& j) {
          j.update({{"n_layer", c.layers},
                    {"n_head", c.heads},
                    {"n_embd", c.width},
                    {"n_inner", c.ffn},
                    {"n_positions", c.context},
                    {"n_ctx", c.context},
                    {"layer_norm_epsilon", c.norm_eps},
                    {"activation_function", io::enum_name(c.activation)}});
        },
    .decoder = [](const io::ModelConfig&) -> DecoderSpec {
      using enum BlockPart;
      static constexpr DecoderSpec::Module block[] = {
          {attention_norm, "ln_1"}, {qkv, "attn.c_attn"}, {o, "attn.c_proj"},
          {mlp_norm, "ln_2"},       {up, "mlp.c_fc"},     {down, "mlp.c_proj"},
      };
      static constexpr std::string_view masks[] = {".attn.bias", ".attn.masked_bias"};  // causal masks in old files
      return {.prefix = "transformer.",
              .tokens = "wte",
              .positions = "wpe",
              .layers = "h",
              .last_norm = "ln_f",
              .block = block,
              .layer_norm = true,
              .layout = nn::Layout::in_out,
              .qkv_bias = true,
              .o_bias = true,
              .mlp_bias = true,
              .not_parameters = masks};
    },
    .check =
        [](const io::ModelConfig& c) {
          if (c.kv_heads != c.heads)
            fail_usage("model", "family gpt2 has kv_heads == heads, found {} and {}; use llama for grouped heads",
                       c.kv_heads, c.heads);
          if (c.head_dim * c.heads != c.width)
            fail_usage("model", "family gpt2 has head_dim * heads == width, found {} * {} and {}", c.head_dim, c.heads,
                       c.width);
        },
};

}  // namespace hpcdl::models
