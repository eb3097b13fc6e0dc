#include "hpcdl/models/encoder_config.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/hf_keys.h"

namespace hpcdl::models {

namespace {

constexpr std::int64_t kMostBytes = 16 << 20;  // bytes
constexpr const char* kEncoder = "bert";

std::optional<io::Json> read_optional(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  return io::read_json(file, kMostBytes);
}

/// "pooling_mode": "mean" of newer files, or one of the flags of older ones.
Pooling pooling_in(const io::Json& json, const std::string& where) {
  const io::JsonObject o(json, where);
  std::string found = o.get_or<std::string>("pooling_mode", "");
  for (const auto& [key, value] : json.items()) {
    constexpr std::string_view kFlag = "pooling_mode_";
    if (!key.starts_with(kFlag) || value != true) continue;
    found += (found.empty() ? "" : " and ") + key.substr(kFlag.size());
  }
  if (found == "cls" || found == "cls_token") return Pooling::cls;
  if (found == "mean" || found == "mean_tokens") return Pooling::mean;
  if (found == "max" || found == "max_tokens") return Pooling::max;
  fail("model", "{}: expected one pooling mode of cls, mean and max, found {}", where, found.empty() ? "none" : found);
}

void read_modules(const std::filesystem::path& folder, const io::Json& modules, const std::string& where,
                  EmbeddingConfig& c) {
  require(modules.is_array() && !modules.empty(), "model", "{}: expected a list of modules", where);
  bool pooled = false;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const io::JsonObject module(modules[i], where);
    const auto type = module.need<std::string>("type"), name = type.substr(type.rfind('.') + 1);
    if (i == 0) {
      require(name == "Transformer", "model", "{}: expected Transformer as the first module, found {}", where,
              io::shown(type));
    } else if (name == "Pooling" && !pooled && !c.normalise) {
      const auto file = folder / module.get_or<std::string>("path", "") / "config.json";
      c.pooling = pooling_in(io::read_json(file, kMostBytes), file.string());
      pooled = true;
    } else if (name == "Normalize" && pooled) {
      c.normalise = true;
    } else {
      fail("model", "{}: expected the modules Transformer, Pooling and perhaps Normalize, found {}: not supported here",
           where, io::shown(type));
    }
  }
  require(pooled, "model", "{}: expected a module Pooling, found none", where);
}

/// The prompt before texts whose purpose is not given.
std::string default_prompt(const io::Json& json, const std::string& where) {
  const io::JsonObject o(json, where);
  const auto name = o.get<std::string>("default_prompt_name");
  const auto* const prompts = o.find("prompts");
  if (!name) return "";
  require(prompts != nullptr, "model", "{}: expected \"prompts\", found none", where);
  return io::JsonObject(*prompts, where + ": prompts").need<std::string>(name->c_str());
}

}  // namespace

bool is_encoder(const std::filesystem::path& folder) {
  const auto path = io::config_of_model(folder);
  const auto json = io::read_json(path, kMostBytes);
  return io::JsonObject(json, path.string()).get_or<std::string>("model_type", "") == kEncoder;
}

EncoderConfig parse_encoder_config(const io::Json& json, const std::string& where) {
  const io::JsonObject o(json, where);
  const auto type = o.need<std::string>("model_type");
  require(type == kEncoder, "model", "{}: model_type: expected {}, found {}: no encoder that is supported", where,
          kEncoder, io::shown(type));
  const auto position = o.get_or<std::string>("position_embedding_type", "absolute");
  require(position == "absolute", "model", "{}: position_embedding_type: expected absolute, found {}", where,
          io::shown(position));
  for (const auto* key : {"is_decoder", "add_cross_attention"})
    require(!o.get_or(key, false), "model", "{}: {}: expected false: an encoder sees whole texts", where, key);
  require(!o.find("quantization_config"), "model", "{}: quantization_config: expected none: encoders are not quantised",
          where);
  EncoderConfig c;
  c.layers = size_in(o, "num_hidden_layers", c.layers), c.heads = size_in(o, "num_attention_heads", c.heads);
  c.width = size_in(o, "hidden_size", c.width), c.ffn = size_in(o, "intermediate_size", c.ffn);
  c.context = size_in(o, "max_position_embeddings", c.context), c.vocab = size_in(o, "vocab_size", c.vocab);
  c.norm_eps = o.get_or("layer_norm_eps", c.norm_eps);
  c.activation = activation_in(o, "hidden_act", "gelu");
  require(c.layers >= 1 && c.layers <= io::kMostLayers && c.heads >= 1 && c.width >= 1 && c.ffn >= 1 &&
              c.context >= 1 && c.vocab >= 1,
          "model", "{}: expected sizes of at least 1 and at most {} layers", where, io::kMostLayers);
  require(c.width % c.heads == 0, "model", "{}: hidden_size {} is not divisible by {} heads", where, c.width, c.heads);
  require(c.norm_eps >= 0 && c.norm_eps <= 1, "model", "{}: layer_norm_eps: expected 0 to 1, found {}", where,
          c.norm_eps);
  require(c.activation != io::Activation::silu, "model", "{}: hidden_act: expected gelu, gelu_new or relu, found silu",
          where);
  return c;
}

EncoderConfig read_encoder_config(const std::filesystem::path& folder) {
  const auto path = io::config_of_model(folder);
  return parse_encoder_config(io::read_json(path, kMostBytes), path.string());
}

EmbeddingConfig read_embedding_config(const std::filesystem::path& folder, const EncoderConfig& config) {
  EmbeddingConfig c{.longest = config.context};
  const auto modules = folder / "modules.json", sizes = folder / "sentence_bert_config.json",
             prompts = folder / "config_sentence_transformers.json";
  if (const auto json = read_optional(modules)) read_modules(folder, *json, modules.string(), c);
  if (const auto json = read_optional(sizes)) {
    const io::JsonObject o(*json, sizes.string());
    if (const auto longest = o.get<std::int64_t>("max_seq_length")) c.longest = std::min(c.longest, *longest);
    require(c.longest >= 1, "model", "{}: max_seq_length: expected at least 1, found {}", sizes.string(), c.longest);
    require(!o.get_or("do_lower_case", false), "model",
            "{}: do_lower_case: expected false: the tokenizer decides about the case", sizes.string());
  }
  if (const auto json = read_optional(prompts)) c.prompt = default_prompt(*json, prompts.string());
  return c;
}

}  // namespace hpcdl::models
