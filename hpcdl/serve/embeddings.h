#pragma once
// Calls of /v1/embeddings: what they ask for, and the bodies of their answers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/serve/loaded_encoder.h"
#include "hpcdl/serve/served_model.h"

namespace hpcdl::serve {

struct EmbeddingCall {
  std::vector<std::vector<std::int32_t>> texts;  // ids with special tokens
  std::int64_t dimensions = 0;                   // 0: those of the model
  bool base64 = false;                           // of little-endian f32

  std::int64_t tokens() const;
};

/// Throws Refusal, or Error for what the tokenizer refuses.
EmbeddingCall read_embeddings(std::string_view body, const ModelFacts& facts, const LoadedEncoder& encoder);
/// `vectors`: of all texts, as the encoder gives them.
std::string embeddings_body(const EmbeddingCall& call, std::span<const std::vector<float>> vectors,
                            const std::string& model);
/// As a list of JSON, each number with as many digits as tell it from other floats.
std::string json_list(std::span<const float> vector);

}  // namespace hpcdl::serve
