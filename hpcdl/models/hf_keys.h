#pragma once
// Keys of config.json and names that several families share. All readers throw Error and name the key.

#include <optional>

#include "hpcdl/models/family.h"

namespace hpcdl::models {

/// A size of at least 1, or of at least 0 if there is a fallback; bounded so that products of a few sizes do not
/// overflow. Throws Error that names the key.
std::int64_t size_in(const io::JsonObject& o, const char* key, std::optional<std::int64_t> fallback = {});
io::Activation activation_in(const io::JsonObject& o, const char* key, const char* fallback);

// Shared by Llama and its many descendants.

/// The meaning of a config without the key.
struct LlamaDefaults {
  double norm_eps = 1e-6;
  std::int64_t context = 2048;
  std::int64_t kv_heads = 0;  // 0: as many as heads
};

/// Sizes, norms, rotary positions and their scaling, activation. Without head_dim, the width is divided among the
/// heads. The head is not tied unless config.json says so.
void parse_llama_keys(const io::JsonObject& o, io::ModelConfig& c, const LlamaDefaults& unstated = {});
void write_llama_keys(const io::ModelConfig& c, io::Json& j);

/// Requires every token to attend to all before it: throws Error for a sliding_window shorter than the context.
/// `unstated`: the window of a config without this key; 0: none.
void expect_no_window(const io::JsonObject& o, const io::ModelConfig& c, std::int64_t unstated = 0);

/// Without biases, with separate q, k and v, and with a gate; its block may be replaced.
DecoderSpec llama_decoder();

}  // namespace hpcdl::models
