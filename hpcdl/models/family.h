#pragma once
// Families of language models. Each is one file in families/, whose last lines are its row; docs/adding_a_family.md
// shows how to add one.

#include <array>
#include <string_view>

#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/decoder_spec.h"

namespace hpcdl::models {

struct FamilyRow {
  std::string_view architecture;  // the class of transformers, in config.json
  /// Reads what config.json says about sizes and arithmetic. Throws Error for what this family computes in another way
  /// than our layers.
  void (*parse)(const io::JsonObject& json, io::ModelConfig& config) = nullptr;
  /// Writes what parse() reads.
  void (*write)(const io::ModelConfig& config, io::Json& json) = nullptr;
  /// What the decoder consists of. It may be asked before zeros in the config have been replaced.
  DecoderSpec (*decoder)(const io::ModelConfig& config) = nullptr;
  /// Throws UsageError for a resolved config that the family has no file format for; null: it takes all.
  void (*check)(const io::ModelConfig& config) = nullptr;
  bool chooses_attention_bias = false;  // attention_bias of the config may be true
  /// Of the keys that hf_config.cpp refuses unless a family knows them, those that parse() reads.
  std::array<std::string_view, 2> reads = {};
};

#define HPCDL_ROW(name) extern const FamilyRow name##_row;
HPCDL_TEXT_FAMILIES(HPCDL_ROW)
#undef HPCDL_ROW

/// Throws UsageError for a family of images.
const FamilyRow& row_of(io::Family family);

/// Replaces zeros and `automatic` by what they stand for (vocab stays 0 when unknown), then checks that the numbers fit
/// together; throws UsageError "[model] ..." that says which do not. Families of images have a config of their own
/// (image_config.h): nothing is done.
void resolve(io::ModelConfig& config);

}  // namespace hpcdl::models
