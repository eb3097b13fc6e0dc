#include "hpcdl/models/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/foreign/config.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/gguf/config.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/structures.h"

namespace hpcdl::models {

using io::Json;
using io::JsonObject;
using io::ModelConfig;
using io::shown;

namespace {

// Keys with which some models compute something else than our layers. They must be absent or off (false, 0), or absent
// or 1 (true), except for those that a family reads (FamilyRow::reads).
constexpr const char* kAbsent[] = {"add_cross_attention",
                                   "alibi",
                                   "attention_bias",
                                   "attention_multiplier",
                                   "attn_logit_softcapping",
                                   "clip_qkv",
                                   "final_logit_softcapping",
                                   "mlp_bias",
                                   "no_rope_layers",
                                   "num_experts",
                                   "num_local_experts",
                                   "parallel_attn",
                                   "qk_layernorm",
                                   "query_pre_attn_scalar",
                                   "rope_interleaved",
                                   "scale_attn_by_inverse_layer_idx",
                                   "sliding_window",
                                   "use_bidirectional_attention",
                                   "use_mrope",
                                   "use_parallel_residual",
                                   "use_qk_norm"};
constexpr const char* kOne[] = {"embedding_multiplier", "logit_scale", "logits_scaling",    "partial_rotary_factor",
                                "residual_multiplier",  "rotary_pct",  "scale_attn_weights"};

void refuse_other_arithmetic(const JsonObject& o, const FamilyRow& row) {
  const auto expect = [&](const char* key, int number, std::string_view words) {
    const Json* v = o.find(key);
    if (!v || *v == number || *v == (number != 0) || std::ranges::find(row.reads, key) != row.reads.end()) return;
    fail("io", "{}: {} = {} is not supported for this family; expected {}", o.where(), key,
         v->is_number() || v->is_boolean() ? v->dump() : shown(v->dump()), words);
  };
  for (const auto* key : kAbsent) expect(key, 0, "none");
  for (const auto* key : kOne) expect(key, 1, "1 or none");
  if (const Json* types = o.find("layer_types"))
    for (const auto& type : *types)
      require(type == "full_attention" || type == "sliding_attention", "io",
              "{}: layer_types: expected full_attention or sliding_attention, found {}", o.where(), shown(type.dump()));
}

io::Family family_in(const JsonObject& o) {
  const auto type = o.need<std::string>("model_type");
  const auto found = io::enum_of<io::Family>(type);
  const bool of_images = found && io::is_image_family(*found);
  if (found && !of_images) return *found;
  std::string known;
  for (const auto& [family, name] : io::EnumNames<io::Family>::values)
    if (!io::is_image_family(family)) known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  fail("io", "{}: model_type: expected one of {}, found {}: {}", o.where(), known, shown(type),
       of_images        ? "a classifier of images, which hpcdl eval --images takes"
       : type == "bert" ? "an encoder, which hpcdl embed takes"
                        : "this family is not supported");
}

/// A number, a list of them, or nothing.
void read_eos(const JsonObject& o, ModelConfig& c) {
  const Json* eos = o.find("eos_token_id");
  if (!eos) return;
  c.eos.clear();
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const auto& id : list) {
    require(id.is_number_integer(), "io", "{}: eos_token_id: expected numbers, found {}", o.where(), io::json_kind(id));
    // transformers writes its default tokens to config.json for any vocabulary; a token outside the vocabulary cannot
    // end a text.
    if (const auto token = id.get<std::int64_t>(); token >= 0 && token < c.vocab) c.eos.push_back(token);
  }
}

/// For every family, after its own keys: c.tied is the family's default.
void read_common(const JsonObject& o, ModelConfig& c) {
  c.tied = o.get_or("tie_word_embeddings", c.tied);
  c.bos = o.get<std::int64_t>("bos_token_id");
  read_eos(o, c);
  const auto dtype = o.get<std::string>("torch_dtype").value_or(o.get_or<std::string>("dtype", "float32"));
  c.dtype = DType::none;
  for (int i = 1; i < kDTypeCount; ++i)
    if (const auto d = static_cast<DType>(i); is_float(d) && dtype == array_name(d)) c.dtype = d;
  require(c.dtype != DType::none, "io", "{}: torch_dtype: expected float32, bfloat16, float16 or float64, found {}",
          o.where(), shown(dtype));
  const Json* quant = o.find("quantization_config");
  if (quant && !io::pack_config_in(*quant, c.dtype, o.where() + ": quantization_config"))
    c.quant = quant::parse_config(*quant, o.where() + ": quantization_config");
  if (const Json* compressed = o.find(quant::kCompressionKey))
    c.compressed = quant::parse_structures(*compressed, fmt::format("{}: {}", o.where(), quant::kCompressionKey));
}

}  // namespace

ModelConfig parse_hf_config(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  ModelConfig c{.family = family_in(o)};
  const FamilyRow& row = row_of(c.family);
  refuse_other_arithmetic(o, row);
  row.parse(o, c);
  read_common(o, c);
  require(c.norm_eps >= 0 && c.norm_eps <= 1, "io", "{}: epsilon of the norms: expected 0 to 1, found {}", where,
          c.norm_eps);
  require(c.rope_theta >= 1 && c.rope_theta < 1e30, "io", "{}: rope_theta: expected a number >= 1, found {}", where,
          c.rope_theta);
  try {
    resolve(c);
  } catch (const UsageError& e) {
    fail("io", "{}: {}", where, e.what());
  }
  return c;
}

ModelConfig read_hf_config(const io::fs::path& folder) {
  if (io::is_gguf(folder)) return parse_hf_config(config_of_gguf(io::GgufFile::open(folder)), folder.string());
  constexpr std::int64_t kLargest = 16 << 20;
  const io::fs::path path = io::config_of_model(folder), generation = folder / "generation_config.json";
  ModelConfig c = parse_hf_config(io::read_json(path, kLargest), path.string());
  std::error_code ignored;
  if (!io::fs::exists(generation, ignored)) return c;
  const Json json = io::read_json(generation, kLargest);
  read_eos(JsonObject(json, generation.string()), c);
  return c;
}

Json make_hf_config(const ModelConfig& c) {
  require(c.vocab > 0, "io", "config.json: expected a vocabulary size, found 0");
  const FamilyRow& row = row_of(c.family);
  Json j = {{"model_type", io::enum_name(c.family)},
            {"architectures", {row.architecture}},
            {"vocab_size", c.vocab},
            {"tie_word_embeddings", c.tied}};
  if (is_float(c.dtype)) j["torch_dtype"] = array_name(c.dtype);
  j["bos_token_id"] = c.bos ? Json(*c.bos) : Json();
  j["eos_token_id"] = c.eos.empty() ? Json() : c.eos.size() == 1 ? Json(c.eos[0]) : Json(c.eos);
  row.write(c, j);
  if (c.quant) j["quantization_config"] = quant::make_config(*c.quant);
  if (!c.compressed.empty()) j[quant::kCompressionKey] = quant::to_json(c.compressed);
  return j;
}

void write_hf_config(const io::fs::path& folder, const ModelConfig& config) {
  io::write_file_atomic(folder / "config.json", make_hf_config(config).dump(2) + "\n");
}

}  // namespace hpcdl::models
