#pragma once
// Vectors of texts: many texts of different lengths go through an encoder together.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/text_encoder.h"

namespace hpcdl::infer {

/// The ids of a text for an encoder: its prompt before it, special tokens around it. A text that is longer than the
/// encoder allows is cut if `truncate` says so; otherwise Error.
std::vector<std::int32_t> ids_for_embedding(const io::Tokenizer& tokenizer, const models::EmbeddingConfig& config,
                                            std::string_view text, bool truncate);

class Embedder {
 public:
  /// `budget`: the most tokens of a pass; a longer text has a pass of its own.
  Embedder(const models::TextEncoder& model, Pool& pool, std::int64_t budget = 1024);

  /// A vector of EncoderConfig::width numbers for each text. Texts are ids with special tokens. Throws Error for an empty
  /// text, a text that is longer than the encoder allows, an unknown id, and a vector that is not finite.
  std::vector<std::vector<float>> embed(std::span<const std::vector<std::int32_t>> texts);

 private:
  using Texts = std::span<const std::vector<std::int32_t>>;
  void check(Texts texts) const;
  const Instance& program(std::int64_t tokens, std::int64_t sequences);
  void pass(Texts texts, std::span<const std::size_t> which, std::vector<std::vector<float>>& vectors);
  std::vector<float> pooled(const float* states, std::int64_t tokens) const;

  const models::TextEncoder& model_;
  Stream stream_;
  std::int64_t budget_;
  std::shared_ptr<Buffer> arena_;
  std::map<std::pair<std::int64_t, std::int64_t>, Instance> programs_;  // by tokens and sequences
  std::vector<float> states_;                                           // of a pass on a GPU, on the host
};

/// The first `dimensions` numbers of a vector, as a vector of length 1. Throws Error if there are fewer.
std::vector<float> shortened(std::span<const float> vector, std::int64_t dimensions);

}  // namespace hpcdl::infer
