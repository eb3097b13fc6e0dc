#pragma once
// The shape of a model: what TOML [model] and the config.json of a Hugging Face folder both describe.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/dtype.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/nn/structure.h"
#include "hpcdl/ops/rope/scaling.h"

namespace hpcdl::io {

/// Every family, once: the enumerators, their names and the rows of those that read text (models/family.h) are made from
/// these lists.
#define HPCDL_TEXT_FAMILIES(ONE) \
  ONE(gpt2)                      \
  ONE(llama) ONE(mistral) ONE(phi3) ONE(qwen2) ONE(qwen3) ONE(gemma2) ONE(gemma3_text) ONE(mixtral) ONE(qwen3_moe)
#define HPCDL_IMAGE_FAMILIES(ONE) ONE(simple_cnn) ONE(resnet18)

#define HPCDL_ENUMERATOR(name) name,
enum class Family { HPCDL_TEXT_FAMILIES(HPCDL_ENUMERATOR) HPCDL_IMAGE_FAMILIES(HPCDL_ENUMERATOR) };
#undef HPCDL_ENUMERATOR
template <> struct EnumNames<Family> {
#define HPCDL_NAME(name) {Family::name, #name},
  static constexpr std::pair<Family, std::string_view> values[] = {HPCDL_TEXT_FAMILIES(HPCDL_NAME)
                                                                       HPCDL_IMAGE_FAMILIES(HPCDL_NAME)};
#undef HPCDL_NAME
};
/// Classifiers of images; the others are models of text.
constexpr bool is_image_family(Family f) { return f >= Family::simple_cnn; }

/// gelu_new is the tanh form. automatic: the family's own (gelu_new, silu).
enum class Activation { automatic, gelu_new, gelu, relu, silu };
template <> struct EnumNames<Activation> {
  static constexpr std::pair<Activation, std::string_view> values[] = {{Activation::automatic, "auto"},
                                                                       {Activation::gelu_new, "gelu_new"},
                                                                       {Activation::gelu, "gelu"},
                                                                       {Activation::relu, "relu"},
                                                                       {Activation::silu, "silu"}};
};

/// How the matrices of a folder are quantised ("quantization_config" of config.json).
struct QuantConfig {
  const nn::Codec* codec = nullptr;  // never null
  nn::CodecOptions options = {};
  bool operator==(const QuantConfig&) const = default;
};

inline constexpr std::int64_t kMostLayers = 4096;  // planning 100,000 layers took 24 s and 6.8 GB

/// models::resolve() (models/family.h) replaces zeros and `automatic` by what they stand for.
struct ModelConfig {
  Family family = Family::gpt2;
  std::int64_t layers = 6, heads = 6, width = 384, context = 256;
  std::int64_t kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;  // 0: derived
  double norm_eps = 1e-5, rope_theta = 10'000;
  bool tied = true;             // lm_head shares the token embedding
  bool attention_bias = false;  // biases in all attention projections, in families that leave the choice
  std::int64_t window = 0;      // keys that a query of a sliding layer sees, its own included; 0: all
  std::int64_t experts = 0,
               chosen_experts = 0;  // MLPs of a layer, and how many of them a token goes through; 0: one MLP
  std::int64_t expert_ffn = 0;      // another name for `ffn` of experts; 0 once resolved
  double balance = 0.001;           // coefficient of the loss that balances experts; 0: there is none
  Activation activation = Activation::automatic;

  // Not for people to set: found in the folder or made with the tokenizer.
  bool mlp_bias = false;
  std::vector<bool> sliding = {};  // which layers have the window; empty: those that the family's models have
  RopeScaling rope_scaling = {};
  double rope_local_theta = 10'000;     // base of the rotary angles of sliding layers (gemma3_text)
  double rotary_part = 1;               // of each head, which is rotated
  double score_divisor = 0;             // scores of attention are divided by its square root; 0: head_dim
  double score_cap = 0, logit_cap = 0;  // c tanh(x / c) of the scores of attention, of the logits; 0: none
  bool weights_sum_to_one = true;       // the weights of the chosen experts are divided by their sum
  std::optional<std::int64_t> bos = {};
  std::vector<std::int64_t> eos = {};  // any of them ends a text
  DType dtype = DType::f32;            // of the stored weights
  std::optional<QuantConfig> quant = {};
  std::map<std::string, nn::Structure> compressed = {};  // layers whose matrices are products of factors, by name

  void visit(auto&& f) {
    f("family", family, "architecture: simple_cnn and resnet18 read images, the others text");
    f("layers", layers, "transformer blocks", {.min = 1, .max = kMostLayers});
    f("heads", heads, "attention heads", {.min = 1, .max = 100'000});
    f("kv_heads", kv_heads, "heads of keys and values; 0: as many as heads", {.min = 0, .max = 100'000});
    f("width", width, "size of the residual stream", {.min = 1, .max = 1 << 24});
    f("head_dim", head_dim, "size of one head; 0: width / heads", {.min = 0, .max = 1 << 24});
    f("ffn", ffn, "hidden size of the MLP; 0: 4 x width (gpt2), else 8/3 x width rounded up to 64",
      {.min = 0, .max = 1 << 26});
    f("experts", experts, "MLPs of a layer among which a router chooses (mixtral, qwen3_moe)", {.min = 0, .max = 512});
    f("experts_per_token", chosen_experts, "experts that a token goes through", {.min = 0, .max = 512});
    f("expert_ffn", expert_ffn, "hidden size of each expert; 0: ffn", {.min = 0, .max = 1 << 26});
    f("balance", balance, "coefficient of the loss that keeps experts equally used; 0: none", {.min = 0, .max = 1e6});
    f("vocab", vocab, "size of the vocabulary; 0: that of the tokenizer", {.min = 0, .max = 1 << 30});
    f("context", context, "longest sequence", {.min = 1, .max = 1 << 30});
    f("norm_eps", norm_eps, "epsilon of the norms", {.min = 0, .max = 1});
    f("rope_theta", rope_theta, "base of the rotary angles, which all families but gpt2 have", {.min = 1});
    f("tied", tied, "share token embedding and output head");
    f("attention_bias", attention_bias, "biases in the attention projections (llama, qwen3)");
    f("window", window, "tokens that a token attends to in sliding layers, itself included; 0: all before it",
      {.min = 0, .max = 1 << 30});
    f("activation", activation, "non-linearity of the MLP; auto: gelu_new (gpt2), else silu");
  }

  /// Elements of a head that are rotated.
  std::int64_t rotated() const { return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary_part); }
  bool slides(std::int64_t layer) const {
    return static_cast<std::size_t>(layer) < sliding.size() && sliding[static_cast<std::size_t>(layer)];
  }

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace hpcdl::io
