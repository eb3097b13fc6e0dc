#pragma once
// Where the parameters of a decoder are in a GGUF file, and in which order their elements are stored there.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/decoder_spec.h"

namespace hpcdl::models {

struct GgufPlace {
  std::string tensor;        // "blk.0.attn_q.weight"
  std::int64_t expert = -1;  // the part of a tensor that holds the matrices of all experts; -1: the whole
  std::int64_t heads = 0;    // rows of each head alternate between its halves; 0: they do not
  bool transposed = false;   // (out, in), where the model has (in, out)
  float added = 0;           // to every value in the file

  bool as_stored() const { return heads == 0 && !transposed && added == 0; }
};

/// The name of the families' files of this architecture in transformers, such as "gemma3_text" for "gemma3"; empty if it is
/// not supported.
std::string_view family_of_architecture(std::string_view architecture);
/// The reverse.
std::string_view architecture_of(io::Family family);

class GgufNames {
 public:
  GgufNames(const DecoderSpec& decoder, const io::ModelConfig& config) : decoder_(decoder), config_(config) {}

  /// Of a parameter of the decoder, by its name in transformers; none for other names.
  std::optional<GgufPlace> place_of(std::string_view name) const;
  /// The name in transformers of what a tensor holds. For experts, which share a tensor, that of the first one. A tensor
  /// that belongs to a layer and to no part of it keeps its last name in that layer.
  std::string name_of(std::string_view tensor) const;

 private:
  std::optional<GgufPlace> in_layer(std::string_view layer, std::string_view rest) const;
  std::optional<GgufPlace> of_expert(std::string_view layer, std::string_view rest) const;

  DecoderSpec decoder_;
  const io::ModelConfig& config_;
};

/// The row of the file that holds row `r` of a matrix of q or k whose heads have `head_rows` rows each.
constexpr std::int64_t stored_row(std::int64_t r, std::int64_t head_rows) {
  const std::int64_t head = r / head_rows, i = r % head_rows, half = head_rows / 2;
  return head * head_rows + i % half * 2 + i / half;
}
/// The reverse.
constexpr std::int64_t model_row(std::int64_t stored, std::int64_t head_rows) {
  const std::int64_t head = stored / head_rows, i = stored % head_rows, half = head_rows / 2;
  return head * head_rows + i % 2 * half + i / 2;
}

}  // namespace hpcdl::models
