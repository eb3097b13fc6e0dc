#pragma once
// The shape of a text encoder, and how its folder makes one vector of a text: config.json and the side files of
// sentence-transformers.

#include <cstdint>
#include <filesystem>
#include <string>

#include "hpcdl/dtype.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

struct EncoderConfig {
  std::int64_t layers = 12, heads = 12, width = 768, ffn = 3072, context = 512, vocab = 30522;
  double norm_eps = 1e-12;
  io::Activation activation = io::Activation::gelu;
  bool operator==(const EncoderConfig&) const = default;
};

/// What becomes of the last states of a text's tokens, special ones included.
enum class Pooling {
  cls,   // that of the first token
  mean,  // their mean
  max,   // the largest of each element
};

struct EmbeddingConfig {
  Pooling pooling = Pooling::mean;
  bool normalise = false;    // to length 1
  std::int64_t longest = 0;  // most tokens of a text, special ones included
  std::string prompt = {};   // stands before every text
  bool operator==(const EmbeddingConfig&) const = default;
};

/// Whether config.json describes an encoder. Throws Error where there is none.
bool is_encoder(const std::filesystem::path& folder);

/// Throws Error for everything that is computed in another way than here; `where` names the file in messages.
EncoderConfig parse_encoder_config(const io::Json& json, const std::string& where);
EncoderConfig read_encoder_config(const std::filesystem::path& folder);
/// modules.json and the files that it names; without it the mean, not normalised. Throws Error for other modules.
EmbeddingConfig read_embedding_config(const std::filesystem::path& folder, const EncoderConfig& config);

}  // namespace hpcdl::models
