// Gemma 2 (Gemma Team, 2024): Llama with norms before and after attention and MLP whose weights are stored less one,
// GELU gates, scaled and tied embeddings, capped scores and logits, and a window of keys in every second layer.

#include <nlohmann/json.hpp>

#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

const FamilyRow gemma2_row{
    .architecture = "Gemma2ForCausalLM",
    .parse = [](const io::JsonObject& o,
                io::ModelConfig& c) { parse_gemma_keys(o, c, {{.context = 8192, .kv_heads = 4}, 50, 30}); },
    .write = [](const io::ModelConfig& c, io::Json& j) { write_gemma_keys(c, j); },
    .decoder = [](const io::ModelConfig& c) { return gemma_decoder(c, false); },
    .chooses_attention_bias = true,
    .has_windows = true,
    .slides = [](std::int64_t layer) { return layer % 2 == 0; },
    .gate = io::Activation::gelu_new,
    .reads = {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
              "sliding_window"},
};

}  // namespace hpcdl::models
