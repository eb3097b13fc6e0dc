#pragma once
// Keys of config.json and names that several families share. All readers throw Error and name the key.

#include <optional>

#include "hpcdl/models/family.h"

namespace hpcdl::models {

/// A size of at least 1, or of at least 0 if there is a fallback; bounded so that products of a few sizes do not
/// overflow. Throws Error that names the key.
std::int64_t size_in(const io::JsonObject& o, const char* key, std::optional<std::int64_t> fallback = {});
io::Activation activation_in(const io::JsonObject& o, const char* key, const char* fallback);
/// router_aux_loss_coef: the coefficient of the loss that balances experts.
double balance_in(const io::JsonObject& o);

// Shared by Llama and its many descendants.

/// The meaning of a config without the key.
struct LlamaDefaults {
  double norm_eps = 1e-6;
  std::int64_t context = 2048;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  double rope_theta = 10'000;
  bool partial_rotary = false;  // the family reads partial_rotary_factor
};

/// Sizes, norms, rotary positions and their scaling, activation. Without head_dim, the width is divided among the
/// heads. The head is not tied unless config.json says so.
void parse_llama_keys(const io::JsonObject& o, io::ModelConfig& c, const LlamaDefaults& unstated = {});
void write_llama_keys(const io::ModelConfig& c, io::Json& j);

/// The scaling of rotary angles that an object of config.json `o` describes, and its base.
void read_rope(const io::JsonObject& rope, const io::JsonObject& o, io::ModelConfig& c, bool partial_rotary = false);
io::Json rope_json(const RopeScaling& s);

/// sliding_window; `unstated`: that of a config without the key.
void read_window(const io::JsonObject& o, io::ModelConfig& c, std::int64_t unstated = 0);
/// layer_types: which layers have the window. Without the key, those from layer `first` on.
void read_layer_types(const io::JsonObject& o, io::ModelConfig& c, std::int64_t first = 0);
void write_layer_types(const io::ModelConfig& c, io::Json& j);
/// The keys of Qwen2 and Qwen3: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_qwen_windows(const io::JsonObject& o, io::ModelConfig& c);
void write_qwen_windows(const io::ModelConfig& c, io::Json& j);

/// Without biases, with separate q, k and v, and with a gate; its block may be replaced.
DecoderSpec llama_decoder();

// Shared by Gemma 2 and 3: what they add to the keys of Llama.

struct GemmaDefaults {
  LlamaDefaults llama;
  double score_cap = 0, logit_cap = 0;
};
void parse_gemma_keys(const io::JsonObject& o, io::ModelConfig& c, const GemmaDefaults& unstated);
void write_gemma_keys(const io::ModelConfig& c, io::Json& j);
/// Llama's decoder with norms after attention and MLP, norms of q and k if `head_norms`, norm weights that are stored less
/// one, and scaled embeddings.
DecoderSpec gemma_decoder(const io::ModelConfig& c, bool head_norms);

}  // namespace hpcdl::models
