#include "hpcdl/models/gguf/metadata.h"

#include <fmt/format.h>

#include "hpcdl/core/error.h"
#include "hpcdl/models/gguf/names.h"

namespace hpcdl::models {
namespace {

using io::Family;

/// general.file_type
std::uint32_t file_type(io::GgufType type) {
  switch (type) {
    case io::GgufType::f32: return 0;
    case io::GgufType::q4_0: return 2;
    case io::GgufType::q8_0: return 7;
    case io::GgufType::q4_k: return 14;
    case io::GgufType::q6_k: return 18;
    case io::GgufType::bf16: return 32;
    default: return 1;
  }
}

class ConfigWriter {
 public:
  ConfigWriter(io::GgufValues& values, const io::ModelConfig& config)
      : values_(values), c_(config), architecture_(architecture_of(config.family)) {
    require(!architecture_.empty(), "model", "family {} has no architecture in GGUF", io::enum_name(c_.family));
  }

  void write(io::GgufType type) {
    values_.add("general.architecture", architecture_);
    values_.add("general.file_type", file_type(type));
    values_.add("general.quantization_version", std::uint32_t{2});
    size("context_length", c_.context);
    size("embedding_length", c_.width);
    size("block_count", c_.layers);
    size("feed_forward_length", c_.ffn);
    size("attention.head_count", c_.heads);
    if (c_.family == Family::gpt2) return number("attention.layer_norm_epsilon", c_.norm_eps);
    size("attention.head_count_kv", c_.kv_heads);
    size("attention.key_length", c_.head_dim);
    size("attention.value_length", c_.head_dim);
    number("attention.layer_norm_rms_epsilon", c_.norm_eps);
    size("vocab_size", c_.vocab);
    size("rope.dimension_count", c_.rotated());
    number("rope.freq_base", c_.rope_theta);
    write_scaling();
    write_family();
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
  void size(std::string_view name, std::int64_t n) { values_.add(key(name), static_cast<std::uint32_t>(n)); }
  void number(std::string_view name, double x) { values_.add(key(name), static_cast<float>(x)); }

  [[noreturn]] void refuse(std::string_view what) const {
    fail("model", "a GGUF file of family {} cannot have {}: llama.cpp computes it differently",
         io::enum_name(c_.family), what);
  }

  void write_scaling() {
    const auto& s = c_.rope_scaling;
    if (s.kind == RopeScaling::Kind::linear || s.kind == RopeScaling::Kind::yarn) {
      values_.add(key("rope.scaling.type"), s.kind == RopeScaling::Kind::linear ? "linear" : "yarn");
      number("rope.scaling.factor", s.factor);
    }
    if (s.kind == RopeScaling::Kind::yarn) {
      if (!s.whole_indices) refuse("yarn without rounded indices");
      size("rope.scaling.original_context_length", static_cast<std::int64_t>(s.original_context));
      number("rope.scaling.yarn_beta_fast", s.fast_turns);
      number("rope.scaling.yarn_beta_slow", s.slow_turns);
    }
    if (s.kind == RopeScaling::Kind::longrope) {
      size("rope.scaling.original_context_length", static_cast<std::int64_t>(s.original_context));
      number("rope.scaling.attn_factor", s.magnitude);
      if (c_.family != Family::phi3 && s.short_factors != s.long_factors) refuse("two lists of divisors of angles");
    }
  }

  void write_family() {
    const bool gemma = c_.family == Family::gemma2 || c_.family == Family::gemma3_text;
    if (gemma) write_gemma();
    else if (c_.window > 0 && c_.family != Family::phi3) refuse("windows of attention");
    if (c_.family == Family::phi3) size("attention.sliding_window", c_.window);
    if (c_.experts == 0) return;
    if (!c_.weights_sum_to_one) refuse("experts whose weights do not sum to one");
    size("expert_count", c_.experts);
    size("expert_used_count", c_.chosen_experts);
    if (c_.family == Family::qwen3_moe) size("expert_feed_forward_length", c_.ffn);
  }

  void write_gemma() {
    const bool third = c_.family == Family::gemma3_text;
    const std::int64_t by_width = c_.layers == (third ? 62 : 46) ? c_.width / c_.heads : 0;
    if (c_.score_divisor != static_cast<double>(by_width == c_.head_dim ? 0 : by_width))
      refuse(fmt::format("scores divided by the square root of {}", c_.score_divisor));
    for (std::int64_t i = 0; i < c_.layers; ++i)
      if (c_.window > 0 && c_.slides(i) != (third ? (i + 1) % 6 != 0 : i % 2 == 0)) refuse("these sliding layers");
    if (!third && (c_.score_cap == 0 || c_.logit_cap == 0)) refuse("scores and logits without caps");
    if (!third && !c_.tied) refuse("a head that is not tied to the embeddings");
    if (third && c_.score_cap > 0) refuse("capped scores");
    if (c_.score_cap > 0) number("attn_logit_softcapping", c_.score_cap);
    if (c_.logit_cap > 0) number("final_logit_softcapping", c_.logit_cap);
    size("attention.sliding_window", c_.window > 0 ? c_.window : c_.context);
    if (third) number("rope.freq_base_swa", c_.rope_local_theta);
  }

  io::GgufValues& values_;
  const io::ModelConfig& c_;
  std::string_view architecture_;
};

std::vector<float> in_f32(const std::vector<double>& list) { return {list.begin(), list.end()}; }

}  // namespace

std::vector<RopeDivisors> rope_divisors(const io::ModelConfig& c) {
  const auto& s = c.rope_scaling;
  if (s.kind == RopeScaling::Kind::longrope && c.family == Family::phi3)
    return {{"rope_factors_long.weight", in_f32(s.long_factors)},
            {"rope_factors_short.weight", in_f32(s.short_factors)}};
  if (s.kind == RopeScaling::Kind::longrope) return {{"rope_freqs.weight", in_f32(s.long_factors)}};
  if (s.kind != RopeScaling::Kind::llama3) return {};
  const auto plain = RopeScaling().frequencies(c.rotated(), c.rope_theta),
             scaled = s.frequencies(c.rotated(), c.rope_theta);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < plain.size(); ++i) divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  return {{"rope_freqs.weight", std::move(divisors)}};
}

void add_config(io::GgufValues& values, const io::ModelConfig& config, io::GgufType type) {
  ConfigWriter(values, config).write(type);
}

}  // namespace hpcdl::models
