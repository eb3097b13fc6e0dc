#include "hpcdl/io/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"

namespace hpcdl::io {
namespace {

constexpr std::pair<DType, std::string_view> kTorchNames[] = {
    {DType::f32, "float32"}, {DType::bf16, "bfloat16"}, {DType::f16, "float16"}, {DType::f64, "float64"}};

void expect_off(const JsonObject& o, const char* key, bool off) {
  if (const auto v = o.get<bool>(key); v && *v != off)
    fail("io", "{}: {} = {} is not supported; only {} is", o.where(), key, *v, off);
}

Activation activation_in(const JsonObject& o, const char* key, const char* fallback) {
  const auto name = o.get_or<std::string>(key, fallback);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_new;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  fail("io", "{}: {}: expected gelu_new, gelu, relu or silu, found {}", o.where(), key, shown(name));
}

/// Sizes are bounded so that the product of a few of them does not overflow.
std::int64_t size_in(const JsonObject& o, const char* key, std::optional<std::int64_t> fallback = {}) {
  const std::int64_t v = fallback ? o.get_or<std::int64_t>(key, *fallback) : o.need<std::int64_t>(key);
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  require(v >= (fallback ? 0 : 1) && v <= kLargest, "io", "{}: {}: expected a size from 1 to {}, found {}", o.where(),
          key, kLargest, v);
  return v;
}

/// A number, a list of them, or nothing.
void read_eos(const JsonObject& o, ModelConfig& c) {
  const Json* eos = o.find("eos_token_id");
  if (!eos) return;
  c.eos.clear();
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const auto& id : list) {
    require(id.is_number_integer(), "io", "{}: eos_token_id: expected numbers, found {}", o.where(), json_kind(id));
    // transformers keeps its default ids in config.json for any vocabulary; an id outside the vocabulary cannot end a
    // text.
    if (const auto token = id.get<std::int64_t>(); token >= 0 && token < c.vocab) c.eos.push_back(token);
  }
}

void read_common(const JsonObject& o, ModelConfig& c, bool tied_by_default) {
  c.tied = o.get_or("tie_word_embeddings", tied_by_default);
  c.bos = o.get<std::int64_t>("bos_token_id");
  read_eos(o, c);
  const auto dtype = o.get<std::string>("torch_dtype").value_or(o.get_or<std::string>("dtype", "float32"));
  c.dtype = DType::none;
  for (const auto& [d, name] : kTorchNames)
    if (name == dtype) c.dtype = d;
  require(c.dtype != DType::none, "io", "{}: torch_dtype: expected float32, bfloat16, float16 or float64, found {}",
          o.where(), shown(dtype));
  if (const Json* quant = o.find("quantization_config")) {
    const JsonObject q(*quant, o.where() + ": quantization_config");
    const auto method = q.need<std::string>("quant_method");
    require(method == "hpcdl_int4", "io", "{}: expected quant_method hpcdl_int4, found {}: start from the original",
            q.where(), shown(method));  // first: the others have other keys
    const QuantConfig out{.method = method,
                          .bits = q.need<std::int64_t>("bits"),
                          .group_size = q.need<std::int64_t>("group_size"),
                          .symmetric = q.get_or("symmetric", true)};
    require(out.bits == 4, "io", "{}: expected 4 bits, found {}", q.where(), out.bits);
    require(out.group_size > 0 && out.group_size <= 1 << 20, "io", "{}: group_size: expected 32, 64 or 128, found {}",
            q.where(), out.group_size);
    c.quant = out;
  }
}

ModelConfig parse_gpt2(const JsonObject& o) {
  ModelConfig c{.family = Family::gpt2};
  // transformers also accepts the second names (GPT2Config.attribute_map), and they take precedence.
  const auto size = [&](const char* key, const char* alias, std::int64_t fallback) {
    return size_in(o, alias, size_in(o, key, fallback));
  };
  c.layers = size("n_layer", "num_hidden_layers", 12), c.heads = size("n_head", "num_attention_heads", 12);
  c.width = size("n_embd", "hidden_size", 768), c.context = size("n_positions", "max_position_embeddings", 1024);
  c.vocab = size_in(o, "vocab_size", 50257), c.ffn = size_in(o, "n_inner", 0);
  c.norm_eps = o.get_or("layer_norm_epsilon", 1e-5);
  c.activation = activation_in(o, "activation_function", "gelu_new");
  expect_off(o, "scale_attn_weights", true);
  expect_off(o, "scale_attn_by_inverse_layer_idx", false);
  expect_off(o, "add_cross_attention", false);
  read_common(o, c, true);
  return c;
}

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

ModelConfig parse_llama(const JsonObject& o) {
  ModelConfig c{.family = Family::llama};
  c.layers = size_in(o, "num_hidden_layers"), c.heads = size_in(o, "num_attention_heads");
  c.kv_heads = size_in(o, "num_key_value_heads", 0), c.head_dim = size_in(o, "head_dim", 0);
  c.width = size_in(o, "hidden_size"), c.ffn = size_in(o, "intermediate_size");
  c.vocab = size_in(o, "vocab_size"), c.context = size_in(o, "max_position_embeddings", 2048);
  c.norm_eps = o.get_or("rms_norm_eps", 1e-6);
  c.rope_theta = o.get_or("rope_theta", 10'000.0);
  expect_all_rotated(o);  // the key of configs from before rope_parameters
  read_rope(o, "rope_scaling", c);
  read_rope(o, "rope_parameters", c);
  c.attention_bias = o.get_or("attention_bias", false);
  c.activation = activation_in(o, "hidden_act", "silu");
  c.mlp_bias = o.get_or("mlp_bias", false);
  require(!o.find("sliding_window"), "io", "{}: sliding_window is not supported", o.where());
  read_common(o, c, false);
  return c;
}

}  // namespace

ModelConfig parse_hf_config(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  const auto type = o.need<std::string>("model_type");
  require(type == "gpt2" || type == "llama", "io", "{}: model_type: expected gpt2 or llama, found {}: {}", where,
          shown(type),
          type == "simple_cnn" || type == "resnet18" ? "a classifier of images, which hpcdl eval --images takes"
                                                     : "this family is not supported");
  ModelConfig c = type == "gpt2" ? parse_gpt2(o) : parse_llama(o);
  require(c.norm_eps >= 0 && c.norm_eps <= 1, "io", "{}: epsilon of the norms: expected 0 to 1, found {}", where,
          c.norm_eps);
  require(c.rope_theta >= 1 && c.rope_theta < 1e30, "io", "{}: rope_theta: expected a number >= 1, found {}", where,
          c.rope_theta);
  try {
    c.resolve();
  } catch (const UsageError& e) {
    fail("io", "{}: {}", where, e.what());
  }
  return c;
}

ModelConfig read_hf_config(const fs::path& folder) {
  constexpr std::int64_t kLargest = 16 << 20;
  const fs::path path = config_of_model(folder), generation = folder / "generation_config.json";
  ModelConfig c = parse_hf_config(read_json(path, kLargest), path.string());
  std::error_code ignored;
  if (!fs::exists(generation, ignored)) return c;
  const Json json = read_json(generation, kLargest);
  read_eos(JsonObject(json, generation.string()), c);
  return c;
}

static Json rope_json(const RopeScaling& s) {
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

Json make_hf_config(const ModelConfig& c) {
  require(c.vocab > 0, "io", "config.json: expected a vocabulary size, found 0");
  Json j = {{"model_type", enum_name(c.family)}, {"vocab_size", c.vocab}, {"tie_word_embeddings", c.tied}};
  for (const auto& [d, name] : kTorchNames)
    if (d == c.dtype) j["torch_dtype"] = name;
  j["bos_token_id"] = c.bos ? Json(*c.bos) : Json();
  j["eos_token_id"] = c.eos.empty() ? Json() : c.eos.size() == 1 ? Json(c.eos[0]) : Json(c.eos);
  if (c.family == Family::gpt2) {
    j.update({{"architectures", {"GPT2LMHeadModel"}},
              {"n_layer", c.layers},
              {"n_head", c.heads},
              {"n_embd", c.width},
              {"n_inner", c.ffn},
              {"n_positions", c.context},
              {"n_ctx", c.context},
              {"layer_norm_epsilon", c.norm_eps},
              {"activation_function", enum_name(c.activation)}});
  } else {
    j.update({{"architectures", {"LlamaForCausalLM"}},
              {"num_hidden_layers", c.layers},
              {"num_attention_heads", c.heads},
              {"num_key_value_heads", c.kv_heads},
              {"head_dim", c.head_dim},
              {"hidden_size", c.width},
              {"intermediate_size", c.ffn},
              {"max_position_embeddings", c.context},
              {"rms_norm_eps", c.norm_eps},
              {"rope_theta", c.rope_theta},
              {"attention_bias", c.attention_bias},
              {"mlp_bias", c.mlp_bias},
              {"hidden_act", enum_name(c.activation)}});
    // The key of transformers 5; older versions read rope_theta above, and rope_scaling.
    j["rope_parameters"] = rope_json(c.rope_scaling);
    if (c.rope_scaling.kind != RopeScaling::Kind::none) j["rope_scaling"] = j["rope_parameters"];
    j["rope_parameters"]["rope_theta"] = c.rope_theta;
  }
  if (c.quant)
    j["quantization_config"] = {{"quant_method", c.quant->method},
                                {"bits", c.quant->bits},
                                {"group_size", c.quant->group_size},
                                {"symmetric", c.quant->symmetric}};
  return j;
}

void write_hf_config(const fs::path& folder, const ModelConfig& config) {
  write_file_atomic(folder / "config.json", make_hf_config(config).dump(2) + "\n");
}

/// "model.safetensors and run.toml", "an empty folder": the first few names, for a message.
static std::string names_in(const fs::path& folder) {
  constexpr std::size_t kShown = 4;
  std::error_code error;
  std::vector<std::string> names;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return error.message();
  if (names.empty()) return "an empty folder";
  std::sort(names.begin(), names.end());
  const auto more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  names.resize(std::min(names.size(), kShown));
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

fs::path config_of_model(const fs::path& folder) {
  std::error_code ignored;
  auto path = folder / "config.json";
  if (!fs::exists(path, ignored))
    fail("io", "{}: not a model folder: expected config.json and model.safetensors, found {}", folder.string(),
         fs::is_directory(folder, ignored) ? names_in(folder)
         : fs::exists(folder, ignored)     ? "a file"
                                           : "nothing with that name");
  return path;
}

fs::path find_model_folder(const std::string& path_or_name) {
  std::error_code ignored;
  if (fs::is_directory(path_or_name, ignored)) {
    const fs::path folder = path_or_name, of_run = folder / "model";
    const bool run = !fs::exists(folder / "config.json", ignored) && fs::exists(of_run / "config.json", ignored);
    config_of_model(run ? of_run : folder);
    return run ? of_run : folder;
  }
  if (fs::exists(path_or_name, ignored)) config_of_model(path_or_name);  // a file: throws
  const auto env = [](const char* name) { return std::getenv(name) ? fs::path(std::getenv(name)) : fs::path(); };
  std::string folder = "models--" + path_or_name;
  if (const auto slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  if (folder.find('/') == std::string::npos) {
    for (const fs::path& cache :
         {env("HF_HUB_CACHE"), env("HF_HOME") / "hub", env("HOME") / ".cache/huggingface/hub"}) {
      const fs::path ref = cache / folder / "refs/main";
      if (!cache.is_absolute() || !fs::exists(ref, ignored)) continue;
      std::string commit = read_file(ref, 1024);
      commit.erase(std::find_if(commit.begin(), commit.end(), [](char c) { return c <= ' '; }), commit.end());
      const fs::path snapshot = cache / folder / "snapshots" / commit;
      if (fs::is_directory(snapshot, ignored)) return snapshot;
    }
  }
  fail("io",
       "{}: expected a model folder (config.json, model.safetensors) or the name of a model in the local Hugging Face "
       "cache, found neither",
       path_or_name);
}

}  // namespace hpcdl::io
