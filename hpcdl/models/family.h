#pragma once
// Families of language models. Each is one file in families/ that ends with its row; docs/adding_a_family.md shows how
// to add one.

#include <array>
#include <string_view>

#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/decoder_spec.h"

namespace hpcdl::models {

struct FamilyRow {
  std::string_view architecture;  // the class name in transformers, stored in config.json
  /// Reads sizes and arithmetic from config.json. Throws Error for everything that this family computes in another way
  /// than our layers.
  void (*parse)(const io::JsonObject& json, io::ModelConfig& config) = nullptr;
  /// Writes the keys that parse() reads.
  void (*write)(const io::ModelConfig& config, io::Json& json) = nullptr;
  /// The parts of the decoder. May be called before zeros in the config have been replaced.
  DecoderSpec (*decoder)(const io::ModelConfig& config) = nullptr;
  /// Throws UsageError for a resolved config that the family's file format cannot represent; null: it accepts all.
  void (*check)(const io::ModelConfig& config) = nullptr;
  bool chooses_attention_bias = false;  // attention_bias of the config may be true
  bool has_windows = false;             // layers may see a window of keys
  bool mixture = false;                 // its MLPs are mixtures of experts
  /// Whether a layer has the window, if there is one; null: all do.
  bool (*slides)(std::int64_t layer) = nullptr;
  io::Activation gate = io::Activation::silu;  // of an MLP with a gate, unless the config says which
  /// The keys that parse() reads, among those that hf_config.cpp refuses for other families.
  std::array<std::string_view, 8> reads = {};
};

#define HPCDL_ROW(name) extern const FamilyRow name##_row;
HPCDL_TEXT_FAMILIES(HPCDL_ROW)
#undef HPCDL_ROW

/// Throws UsageError for a family of images.
const FamilyRow& row_of(io::Family family);

/// Replaces zeros and `automatic` by actual values (vocab stays 0 if unknown), then checks that the numbers are
/// consistent; throws UsageError "[model] ..." that names the inconsistent ones. Families of images have a separate
/// config (image_config.h): for them it does nothing.
void resolve(io::ModelConfig& config);

}  // namespace hpcdl::models
