#include "hpcdl/models/hf_keys.h"

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

std::int64_t size_in(const JsonObject& o, const char* key, std::optional<std::int64_t> fallback) {
  const std::int64_t v = fallback ? o.get_or<std::int64_t>(key, *fallback) : o.need<std::int64_t>(key);
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  require(v >= (fallback ? 0 : 1) && v <= kLargest, "io", "{}: {}: expected a size from 1 to {}, found {}", o.where(),
          key, kLargest, v);
  return v;
}

namespace {

void expect_all_rotated(const JsonObject& o) {
  require(o.get_or("partial_rotary_factor", 1.0) == 1.0, "io",
          "{}: partial_rotary_factor other than 1 is not supported", o.where());
}

void read_rope(const JsonObject& o, const char* key, ModelConfig& c) {
  const Json* value = o.find(key);
  if (!value) return;
  const JsonObject rope(*value, o.where() + ": " + key);
  const auto kind = rope.get<std::string>("rope_type").value_or(rope.get_or<std::string>("type", "default"));
  require(kind == "default" || kind == "linear" || kind == "llama3", "io",
          "{}: expected rope_type default, linear or llama3, found {}: this scaling is not supported", rope.where(),
          shown(kind));
  auto& s = c.rope_scaling;
  if (kind == "linear") s = {.kind = RopeScaling::Kind::linear, .factor = rope.need<double>("factor")};
  if (kind == "llama3")
    s = {.kind = RopeScaling::Kind::llama3,
         .factor = rope.need<double>("factor"),
         .low_freq_factor = rope.need<double>("low_freq_factor"),
         .high_freq_factor = rope.need<double>("high_freq_factor"),
         .original_context = rope.get_or("original_max_position_embeddings",
                                         o.get_or("original_max_position_embeddings", static_cast<double>(c.context)))};
  require(s.factor >= 1 && s.factor < 1e6 && s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor &&
              s.high_freq_factor < 1e6 && s.original_context >= 1 && s.original_context < 1e9,
          "io", "{}: expected factor >= 1 and 0 < low_freq_factor < high_freq_factor, found {}, {} and {}",
          rope.where(), s.factor, s.low_freq_factor, s.high_freq_factor);
  c.rope_theta = rope.get_or("rope_theta", c.rope_theta);
  expect_all_rotated(rope);
}

Json rope_json(const RopeScaling& s) {
  switch (s.kind) {
    case RopeScaling::Kind::linear: return {{"rope_type", "linear"}, {"factor", s.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", static_cast<std::int64_t>(s.original_context)}};
    default: return {{"rope_type", "default"}};
  }
}

}  // namespace

void parse_llama_keys(const JsonObject& o, ModelConfig& c, const LlamaDefaults& unstated) {
  c.tied = false;
  c.layers = size_in(o, "num_hidden_layers"), c.heads = size_in(o, "num_attention_heads");
  c.kv_heads = o.has("num_key_value_heads") ? size_in(o, "num_key_value_heads", 0) : unstated.kv_heads;
  c.head_dim = size_in(o, "head_dim", 0);
  c.width = size_in(o, "hidden_size"), c.ffn = size_in(o, "intermediate_size");
  c.vocab = size_in(o, "vocab_size"), c.context = size_in(o, "max_position_embeddings", unstated.context);
  c.norm_eps = o.get_or("rms_norm_eps", unstated.norm_eps);
  c.rope_theta = o.get_or("rope_theta", 10'000.0);
  read_rope(o, "rope_scaling", c);
  read_rope(o, "rope_parameters", c);
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
}

void expect_no_window(const JsonObject& o, const ModelConfig& c, std::int64_t unstated) {
  const auto window = o.has("sliding_window") ? size_in(o, "sliding_window", 0) : unstated;
  require(window == 0 || window >= c.context, "io",
          "{}: a sliding_window of {} tokens is not supported, because it is shorter than the context "
          "(max_position_embeddings {}): with a max_position_embeddings of {} the model can be used for texts of this "
          "length",
          o.where(), window, c.context, window);
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

}  // namespace hpcdl::models
