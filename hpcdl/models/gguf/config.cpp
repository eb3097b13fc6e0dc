#include "hpcdl/models/gguf/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/tokenizer.h"
#include "hpcdl/models/gguf/names.h"

namespace hpcdl::models {
namespace {

using io::Json;

/// Reads the keys of an architecture, "llama.block_count" and so on.
class GgufConfigReader {
 public:
  explicit GgufConfigReader(const io::GgufFile& file)
      : file_(file), m_(file.metadata()), architecture_(m_.architecture()) {}

  Json read() {
    auto family = family_of_architecture(architecture_);
    require(!family.empty(), "io",
            "{}: general.architecture: expected llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3 or gpt2, found {}: "
            "this "
            "architecture is not supported",
            m_.where(), io::shown(architecture_));
    if (family == "llama" && number("expert_count", 0) > 0) family = "mixtral";
    j_["model_type"] = family;
    j_["vocab_size"] = file_.at("token_embd.weight").shape[0];
    j_["tie_word_embeddings"] = !has_tensor("output.weight");
    j_["torch_dtype"] = stored_type();
    read_ends();
    if (family == "gpt2") read_gpt2();
    else read_llama();
    if (family == "gemma2" || family == "gemma3_text") read_gemma(family == "gemma2" ? 46 : 62);
    if (number("expert_count", 0) > 0) read_experts();
    return j_;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
  std::int64_t number(std::string_view name) const { return m_.need<std::int64_t>(key(name)); }
  std::int64_t number(std::string_view name, std::int64_t otherwise) const {
    return m_.get_or<std::int64_t>(key(name), otherwise);
  }
  double real(std::string_view name, double otherwise) const { return m_.get_or<double>(key(name), otherwise); }
  bool has(std::string_view name) const { return m_.has(key(name)); }
  bool has_tensor(const std::string& name) const { return file_.find(name) != nullptr; }

  /// A number, or a list of the same number for every layer.
  std::int64_t same_for_layers(std::string_view name, std::optional<std::int64_t> otherwise = {}) const {
    const auto* value = m_.find(key(name));
    if (!value || !value->list) return value || !otherwise ? number(name) : *otherwise;
    const auto all = *m_.list<std::int64_t>(key(name));
    for (const auto n : all)
      require(n == all.front(), "io", "{}: {}: expected the same number for all layers, found {} and {}", m_.where(),
              key(name), all.front(), n);
    require(!all.empty(), "io", "{}: {}: expected a number for each layer, found none", m_.where(), key(name));
    return all.front();
  }

  const char* stored_type() const {
    const auto* t = file_.find("blk.0.ffn_down.weight");
    if (!t) return "bfloat16";
    return t->type == io::GgufType::f32 ? "float32" : t->type == io::GgufType::f16 ? "float16" : "bfloat16";
  }

  void read_ends() {
    if (const auto bos = m_.get<std::int64_t>("tokenizer.ggml.bos_token_id")) j_["bos_token_id"] = *bos;
    if (const auto ends = io::end_tokens_of(m_); !ends.empty()) j_["eos_token_id"] = ends;
  }

  void read_gpt2() {
    j_.update({{"n_layer", number("block_count")},
               {"n_head", number("attention.head_count")},
               {"n_embd", number("embedding_length")},
               {"n_inner", number("feed_forward_length")},
               {"n_positions", number("context_length")},
               {"layer_norm_epsilon", real("attention.layer_norm_epsilon", 1e-5)},
               {"activation_function", "gelu_new"}});
  }

  void read_llama() {
    const auto heads = same_for_layers("attention.head_count"), width = number("embedding_length");
    require(heads > 0, "io", "{}: {}: expected 1 or more, found {}", m_.where(), key("attention.head_count"), heads);
    head_dim_ = number("attention.key_length", width / heads);
    const auto value_length = number("attention.value_length", head_dim_);
    require(head_dim_ == value_length, "io", "{}: expected keys and values of one length, found {} and {}", m_.where(),
            head_dim_, value_length);
    j_.update({{"num_hidden_layers", number("block_count")},
               {"num_attention_heads", heads},
               {"num_key_value_heads", same_for_layers("attention.head_count_kv", heads)},
               {"head_dim", head_dim_},
               {"hidden_size", width},
               {"intermediate_size", same_for_layers("feed_forward_length")},
               {"max_position_embeddings", number("context_length")},
               {"rms_norm_eps", real("attention.layer_norm_rms_epsilon", 1e-5)},
               {"rope_theta", real("rope.freq_base", 10'000)},
               {"attention_bias", architecture_ != "qwen2" && has_tensor("blk.0.attn_q.bias")}});
    if (const auto window = number("attention.sliding_window", 0); architecture_ == "phi3" && window > 0)
      j_["sliding_window"] = window;
    if (architecture_ == "llama") j_["mlp_bias"] = has_tensor("blk.0.ffn_up.bias");
    read_rope();
  }

  /// The elements of a tensor that divides rotary angles; empty if there is none.
  std::vector<float> divisors(const std::string& name) const {
    const auto* t = file_.find(name);
    if (!t) return {};
    require(t->type == io::GgufType::f32 && t->shape.rank() == 1, "io", "{}: tensor {}: expected a list in F32",
            m_.where(), name);
    std::vector<float> list(static_cast<std::size_t>(t->shape[0]));
    io::decode_blocks(t->type, file_.data(*t), t->shape[0], list.data());
    return list;
  }

  void read_rope() {
    const auto rotated = number("rope.dimension_count", head_dim_);
    require(rotated > 0 && rotated <= head_dim_, "io", "{}: {}: expected 1 to {}, the size of a head, found {}",
            m_.where(), key("rope.dimension_count"), head_dim_, rotated);
    if (rotated != head_dim_)
      j_["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim_);
    const auto all = divisors("rope_freqs.weight"), shorter = divisors("rope_factors_short.weight"),
               longer = divisors("rope_factors_long.weight");
    const auto context = number("context_length"), original = number("rope.scaling.original_context_length", context);
    if (!all.empty() || !longer.empty()) {
      j_["rope_scaling"] = {{"rope_type", "longrope"},
                            {"short_factor", all.empty() ? shorter : all},
                            {"long_factor", all.empty() ? longer : all},
                            {"factor", std::max(1.0, static_cast<double>(context) / static_cast<double>(original))},
                            {"attention_factor", real("rope.scaling.attn_factor", 1)},
                            {"original_max_position_embeddings", original}};
      j_["original_max_position_embeddings"] = original;
      return;
    }
    read_scaling(original);
  }

  void read_scaling(std::int64_t original) {
    const double factor = real("rope.scaling.factor", real("rope.scale_linear", 1));
    const auto kind = m_.get_or<std::string_view>(key("rope.scaling.type"), factor > 1 ? "linear" : "none");
    require(kind == "none" || kind == "linear" || kind == "yarn", "io",
            "{}: {}: expected none, linear or yarn, found {}: this scaling is not supported", m_.where(),
            key("rope.scaling.type"), io::shown(kind));
    if (kind == "none" || factor == 1) return;
    Json rope = {{"rope_type", kind}, {"factor", factor}};
    if (kind == "yarn") {
      for (const auto* name : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"})
        require(real(name, 1) == 1, "io", "{}: {}: expected 1 or none, found {}: this is not supported", m_.where(),
                key(name), real(name, 1));
      rope["original_max_position_embeddings"] = original;
      rope["beta_fast"] = real("rope.scaling.yarn_beta_fast", 32);
      rope["beta_slow"] = real("rope.scaling.yarn_beta_slow", 1);
    }
    j_["rope_scaling"] = rope;
  }

  /// llama.cpp knows by the number of layers which models divide scores by the square root of width / heads.
  void read_gemma(std::int64_t layers_of_27b) {
    const bool by_width = number("block_count") == layers_of_27b;
    const auto heads = same_for_layers("attention.head_count");
    j_["query_pre_attn_scalar"] = by_width ? number("embedding_length") / heads : head_dim_;
    const auto cap = [&](const char* ours, const char* theirs, double unsaid) {
      const double value = real(theirs, unsaid);
      j_[ours] = value > 0 ? Json(value) : Json();
    };
    const bool caps = architecture_ == "gemma2";
    cap("attn_logit_softcapping", "attn_logit_softcapping", caps ? 50 : 0);
    cap("final_logit_softcapping", "final_logit_softcapping", caps ? 30 : 0);
    j_["sliding_window"] = number("attention.sliding_window", 4096);
    if (architecture_ == "gemma3") j_["rope_local_base_freq"] = real("rope.freq_base_swa", 10'000);
    const auto* pattern = m_.find(key("attention.sliding_window_pattern"));
    if (!pattern) return;
    if (!pattern->list) {
      j_["sliding_window_pattern"] = number("attention.sliding_window_pattern");
      return;
    }
    Json types = Json::array();
    const auto slides_of_layers = *m_.list<bool>(key("attention.sliding_window_pattern"));
    for (const bool slides : slides_of_layers) types.push_back(slides ? "sliding_attention" : "full_attention");
    j_["layer_types"] = types;
  }

  void read_experts() {
    const auto experts = number("expert_count");
    j_.update({{"num_local_experts", experts}, {"num_experts_per_tok", number("expert_used_count")}});
    if (architecture_ == "qwen3moe")
      j_.update({{"num_experts", experts},
                 {"moe_intermediate_size", number("expert_feed_forward_length")},
                 {"norm_topk_prob", true}});
  }

  const io::GgufFile& file_;
  const io::GgufMetadata& m_;
  std::string architecture_;
  std::int64_t head_dim_ = 0;
  Json j_ = Json::object();
};

}  // namespace

Json config_of_gguf(const io::GgufFile& file) { return GgufConfigReader(file).read(); }

}  // namespace hpcdl::models
