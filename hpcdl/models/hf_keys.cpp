#include "hpcdl/models/hf_keys.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace hpcdl::models {

using io::Json;
using io::JsonObject;
using io::ModelConfig;
using io::shown;

io::Activation activation_in(const JsonObject& o, const char* key, const char* fallback) {
  const auto name = o.get_or<std::string>(key, fallback);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return io::Activation::gelu_new;
  if (name == "gelu") return io::Activation::gelu;
  if (name == "relu") return io::Activation::relu;
  if (name == "silu" || name == "swish") return io::Activation::silu;
  fail("io", "{}: {}: expected gelu_new, gelu, relu or silu, found {}", o.where(), key, shown(name));
}

double balance_in(const JsonObject& o) {
  const double v = o.get_or("router_aux_loss_coef", 0.001);
  require(v >= 0 && v <= 1e6, "io", "{}: router_aux_loss_coef: expected a number from 0 to 1e6, found {}", o.where(),
          v);
  return v;
}

std::int64_t size_in(const JsonObject& o, const char* key, std::optional<std::int64_t> fallback) {
  const auto given = o.get<std::int64_t>(key);
  if (!given && fallback) return *fallback;
  const auto v = given ? *given : o.need<std::int64_t>(key);
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  require(v >= 1 && v <= kLargest, "io", "{}: {}: expected a size from 1 to {}, found {}", o.where(), key, kLargest, v);
  return v;
}

namespace {

constexpr double kMost = 1e6;

/// Factors of longrope.
std::vector<double> factors_in(const JsonObject& rope, const char* key) {
  std::vector<double> list;
  const Json* value = rope.find(key);
  require(value && value->is_array(), "io", "{}: {}: expected a list of factors, found {}", rope.where(), key,
          value ? shown(value->dump()) : "none");
  for (const auto& x : *value) {
    require(x.is_number() && x.get<double>() > 0 && x.get<double>() < kMost, "io",
            "{}: {}: expected factors above 0 and below {}, found {}", rope.where(), key, kMost, shown(x.dump()));
    list.push_back(x.get<double>());
  }
  return list;
}

void read_yarn(const JsonObject& rope, RopeScaling& s) {
  s.fast_turns = rope.get_or("beta_fast", 32.0), s.slow_turns = rope.get_or("beta_slow", 1.0);
  s.whole_indices = rope.get_or("truncate", true);
  require(s.slow_turns > 0 && s.fast_turns >= s.slow_turns && s.fast_turns < kMost, "io",
          "{}: expected 0 < beta_slow <= beta_fast, found {} and {}", rope.where(), s.slow_turns, s.fast_turns);
  const auto growth = [&](double scale) { return s.factor <= 1 ? 1 : 0.1 * scale * std::log(s.factor) + 1; };
  const double over = rope.get_or("mscale", 0.0), under = rope.get_or("mscale_all_dim", 0.0);
  s.magnitude = over != 0 && under != 0 ? growth(over) / growth(under) : growth(1);
}

void read_longrope(const JsonObject& rope, RopeScaling& s) {
  s.short_factors = factors_in(rope, "short_factor"), s.long_factors = factors_in(rope, "long_factor");
  s.magnitude = s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_context));
}

}  // namespace

void read_rope(const JsonObject& rope, const JsonObject& o, ModelConfig& c, bool partial_rotary) {
  using Kind = RopeScaling::Kind;
  static constexpr std::pair<std::string_view, Kind> kinds[] = {
      {"default", Kind::none}, {"linear", Kind::linear},     {"dynamic", Kind::dynamic}, {"llama3", Kind::llama3},
      {"yarn", Kind::yarn},    {"longrope", Kind::longrope}, {"su", Kind::longrope}};
  const auto name = rope.get<std::string>("rope_type").value_or(rope.get_or<std::string>("type", "default"));
  const auto* const kind = std::ranges::find(kinds, name, &std::pair<std::string_view, Kind>::first);
  require(kind != std::end(kinds), "io",
          "{}: expected rope_type default, linear, dynamic, llama3, yarn or longrope, found {}: this scaling is not "
          "supported",
          rope.where(), shown(name));
  c.rope_theta = rope.get_or("rope_theta", c.rope_theta);
  c.rotary_part = rope.get_or("partial_rotary_factor", o.get_or("partial_rotary_factor", 1.0));
  require(c.rotary_part == 1 || (partial_rotary && c.rotary_part > 0 && c.rotary_part < 1), "io",
          "{}: partial_rotary_factor = {} is not supported for this family; expected {}", rope.where(), c.rotary_part,
          partial_rotary ? "a factor above 0 and at most 1" : "1 or none");
  if (kind->second == Kind::none) return;
  auto& s = c.rope_scaling;
  s = {.kind = kind->second};
  const bool by_original = s.kind == Kind::llama3 || s.kind == Kind::yarn || s.kind == Kind::longrope;
  const auto context = static_cast<double>(c.context);
  if (by_original)
    s.original_context =
        rope.get_or("original_max_position_embeddings", o.get_or("original_max_position_embeddings", context));
  require(s.original_context >= 1 && s.original_context < 1e9, "io",
          "{}: original_max_position_embeddings: expected 1 to 1e9, found {}", rope.where(), s.original_context);
  const bool by_contexts = s.kind == Kind::yarn || s.kind == Kind::longrope;
  s.factor = by_contexts ? rope.get_or("factor", context / s.original_context) : rope.need<double>("factor");
  if (s.kind == Kind::llama3)
    s.low_freq_factor = rope.need<double>("low_freq_factor"),
    s.high_freq_factor = rope.need<double>("high_freq_factor");
  require(s.factor >= 1 && s.factor < kMost, "io", "{}: expected factor >= 1 and below {}, found {}", rope.where(),
          kMost, s.factor);
  require(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor && s.high_freq_factor < kMost, "io",
          "{}: expected 0 < low_freq_factor < high_freq_factor, found {} and {}", rope.where(), s.low_freq_factor,
          s.high_freq_factor);
  if (s.kind == Kind::yarn) read_yarn(rope, s);
  if (s.kind == Kind::longrope) read_longrope(rope, s);
  if (by_contexts) s.magnitude = rope.get_or("attention_factor", s.magnitude);
  require(s.magnitude > 0 && s.magnitude < kMost, "io", "{}: attention_factor: expected a number above 0, found {}",
          rope.where(), s.magnitude);
}

Json rope_json(const RopeScaling& s) {
  const auto original = static_cast<std::int64_t>(s.original_context);
  switch (s.kind) {
    case RopeScaling::Kind::none: return {{"rope_type", "default"}};
    case RopeScaling::Kind::linear: return {{"rope_type", "linear"}, {"factor", s.factor}};
    case RopeScaling::Kind::dynamic: return {{"rope_type", "dynamic"}, {"factor", s.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", original}};
    case RopeScaling::Kind::yarn:
      return {{"rope_type", "yarn"},
              {"factor", s.factor},
              {"beta_fast", s.fast_turns},
              {"beta_slow", s.slow_turns},
              {"truncate", s.whole_indices},
              {"attention_factor", s.magnitude},
              {"original_max_position_embeddings", original}};
    case RopeScaling::Kind::longrope:
      return {{"rope_type", "longrope"},         {"factor", s.factor},
              {"short_factor", s.short_factors}, {"long_factor", s.long_factors},
              {"attention_factor", s.magnitude}, {"original_max_position_embeddings", original}};
  }
  fail("io", "there is no scaling {} of rotary angles", static_cast<int>(s.kind));
}

void parse_llama_keys(const JsonObject& o, ModelConfig& c, const LlamaDefaults& unstated) {
  c.tied = false;
  c.layers = size_in(o, "num_hidden_layers"), c.heads = size_in(o, "num_attention_heads");
  c.kv_heads = o.has("num_key_value_heads") ? size_in(o, "num_key_value_heads", 0) : unstated.kv_heads;
  c.head_dim = size_in(o, "head_dim", 0);
  c.width = size_in(o, "hidden_size"), c.ffn = size_in(o, "intermediate_size");
  c.vocab = size_in(o, "vocab_size"), c.context = size_in(o, "max_position_embeddings", unstated.context);
  c.norm_eps = o.get_or("rms_norm_eps", unstated.norm_eps);
  c.rope_theta = o.get_or("rope_theta", unstated.rope_theta);
  static const Json none = Json::object();
  const Json* const scaling = o.find("rope_scaling");
  read_rope(JsonObject(scaling ? *scaling : none, o.where() + ": rope_scaling"), o, c, unstated.partial_rotary);
  if (const Json* rope = o.find("rope_parameters"))
    read_rope(JsonObject(*rope, o.where() + ": rope_parameters"), o, c, unstated.partial_rotary);
  c.activation = activation_in(o, "hidden_act", "silu");
}

void write_llama_keys(const ModelConfig& c, Json& j) {
  j.update({{"num_hidden_layers", c.layers},
            {"num_attention_heads", c.heads},
            {"num_key_value_heads", c.kv_heads},
            {"head_dim", c.head_dim},
            {"hidden_size", c.width},
            {"intermediate_size", c.ffn},
            {"max_position_embeddings", c.context},
            {"rms_norm_eps", c.norm_eps},
            {"rope_theta", c.rope_theta},
            {"hidden_act", io::enum_name(c.activation)}});
  // Read by transformers 5; older versions read rope_theta above, and rope_scaling.
  j["rope_parameters"] = rope_json(c.rope_scaling);
  if (c.rope_scaling.kind != RopeScaling::Kind::none) j["rope_scaling"] = j["rope_parameters"];
  j["rope_parameters"]["rope_theta"] = c.rope_theta;
  if (c.rotary_part != 1) j["partial_rotary_factor"] = j["rope_parameters"]["partial_rotary_factor"] = c.rotary_part;
  if (c.rope_scaling.kind == RopeScaling::Kind::longrope)
    j["original_max_position_embeddings"] = j["rope_parameters"]["original_max_position_embeddings"];
}

void read_window(const JsonObject& o, ModelConfig& c, std::int64_t unstated) {
  c.window = o.has("sliding_window") ? size_in(o, "sliding_window", 0) : unstated;
}

void read_layer_types(const JsonObject& o, ModelConfig& c, std::int64_t first) {
  require(c.layers <= io::kMostLayers, "io", "{}: {} layers are too many; at most {} are allowed", o.where(), c.layers,
          io::kMostLayers);
  c.sliding.clear();
  const Json* types = o.find("layer_types");
  require(!types || (types->is_array() && std::ssize(*types) == c.layers), "io",
          "{}: layer_types: expected a list of {} types, found {}", o.where(), c.layers,
          types ? shown(types->dump()) : "none");
  for (std::int64_t i = 0; i < c.layers; ++i)
    c.sliding.push_back(types ? (*types)[static_cast<std::size_t>(i)] == "sliding_attention" : i >= first);
}

void write_layer_types(const ModelConfig& c, Json& j) {
  j["layer_types"] = Json::array();
  for (std::int64_t i = 0; i < c.layers; ++i)
    j["layer_types"].push_back(c.slides(i) ? "sliding_attention" : "full_attention");
}

void read_qwen_windows(const JsonObject& o, ModelConfig& c) {
  if (!o.get_or("use_sliding_window", false)) return;
  read_window(o, c, 4096);
  const auto first = o.get_or<std::int64_t>("max_window_layers", 28);
  require(first >= 0, "io", "{}: max_window_layers: expected 0 or more layers, found {}", o.where(), first);
  read_layer_types(o, c, first);
}

void write_qwen_windows(const ModelConfig& c, Json& j) {
  j["use_sliding_window"] = c.window > 0;
  if (c.window == 0) return;
  j["sliding_window"] = c.window;
  j["max_window_layers"] = std::ranges::find(c.sliding, true) - c.sliding.begin();
  write_layer_types(c, j);
}

DecoderSpec llama_decoder() {
  using enum BlockPart;
  static constexpr DecoderSpec::Module block[] = {
      {q, "self_attn.q_proj"},
      {k, "self_attn.k_proj"},
      {v, "self_attn.v_proj"},
      {o, "self_attn.o_proj"},
      {gate, "mlp.gate_proj"},
      {up, "mlp.up_proj"},
      {down, "mlp.down_proj"},
      {attention_norm, "input_layernorm"},
      {mlp_norm, "post_attention_layernorm"},
  };
  return {.prefix = "model.",
          .tokens = "embed_tokens",
          .positions = {},
          .layers = "layers",
          .last_norm = "norm",
          .block = block};
}

void parse_gemma_keys(const JsonObject& o, ModelConfig& c, const GemmaDefaults& unstated) {
  parse_llama_keys(o, c, unstated.llama);
  c.tied = true;
  c.head_dim = size_in(o, "head_dim", 256);
  c.activation = activation_in(o, "hidden_activation", "gelu_pytorch_tanh");
  c.attention_bias = o.get_or("attention_bias", false);
  c.score_divisor = o.get_or("query_pre_attn_scalar", 256.0);
  require(c.score_divisor > 0 && c.score_divisor < kMost, "io",
          "{}: query_pre_attn_scalar: expected a number above 0, found {}", o.where(), c.score_divisor);
  const auto cap = [&](const char* key, double otherwise) {
    const double value = o.has(key) ? o.get_or(key, 0.0) : otherwise;
    require(value >= 0 && value < kMost, "io", "{}: {}: expected a number above 0, or null, found {}", o.where(), key,
            value);
    return value;
  };
  c.score_cap = cap("attn_logit_softcapping", unstated.score_cap);
  c.logit_cap = cap("final_logit_softcapping", unstated.logit_cap);
  read_window(o, c, 4096);
  if (o.has("layer_types")) read_layer_types(o, c);
}

void write_gemma_keys(const ModelConfig& c, Json& j) {
  write_llama_keys(c, j);
  j.erase("hidden_act");
  const auto cap = [](double value) { return value > 0 ? Json(value) : Json(); };
  j.update({{"hidden_activation",
             c.activation == io::Activation::gelu_new ? "gelu_pytorch_tanh" : io::enum_name(c.activation)},
            {"attention_bias", c.attention_bias},
            {"query_pre_attn_scalar",
             static_cast<std::int64_t>(c.score_divisor > 0 ? c.score_divisor : static_cast<double>(c.head_dim))},
            {"attn_logit_softcapping", cap(c.score_cap)},
            {"final_logit_softcapping", cap(c.logit_cap)},
            {"sliding_window", c.window > 0 ? c.window : c.context}});
  write_layer_types(c, j);
}

DecoderSpec gemma_decoder(const ModelConfig& c, bool head_norms) {
  using enum BlockPart;
  static constexpr DecoderSpec::Module block[] = {
      {q, "self_attn.q_proj"},
      {k, "self_attn.k_proj"},
      {v, "self_attn.v_proj"},
      {o, "self_attn.o_proj"},
      {gate, "mlp.gate_proj"},
      {up, "mlp.up_proj"},
      {down, "mlp.down_proj"},
      {attention_norm, "input_layernorm"},
      {attention_post_norm, "post_attention_layernorm"},
      {mlp_norm, "pre_feedforward_layernorm"},
      {mlp_post_norm, "post_feedforward_layernorm"},
      {q_norm, "self_attn.q_norm"},
      {k_norm, "self_attn.k_norm"},
  };
  auto spec = llama_decoder();
  spec.block = std::span(block).first(std::size(block) - (head_norms ? 0 : 2));
  spec.qkv_bias = spec.o_bias = c.attention_bias;
  spec.norm_offset = 1, spec.scaled_embedding = true;
  return spec;
}

}  // namespace hpcdl::models
