#pragma once
// The shape of a model: what TOML [model] and the config.json of a Hugging Face folder both describe.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/dtype.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/ops/rope/scaling.h"

namespace hpcdl::io {

/// Every family, once: the enumerators, their names and the rows of those that read text (models/family.h) are made from
/// these lists.
#define HPCDL_TEXT_FAMILIES(ONE) ONE(gpt2) ONE(llama) ONE(mistral) ONE(phi3) ONE(qwen2) ONE(qwen3)
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
  Activation activation = Activation::automatic;

  // Not for people to set: found in the folder or made with the tokenizer.
  bool mlp_bias = false;
  RopeScaling rope_scaling = {};
  std::optional<std::int64_t> bos = {};
  std::vector<std::int64_t> eos = {};  // any of them ends a text
  DType dtype = DType::f32;            // of the stored weights
  std::optional<QuantConfig> quant = {};

  void visit(auto&& f) {
    f("family", family, "architecture: simple_cnn and resnet18 read images, the others text");
    f("layers", layers, "transformer blocks", {.min = 1, .max = kMostLayers});
    f("heads", heads, "attention heads", {.min = 1, .max = 100'000});
    f("kv_heads", kv_heads, "heads of keys and values; 0: as many as heads", {.min = 0, .max = 100'000});
    f("width", width, "size of the residual stream", {.min = 1, .max = 1 << 24});
    f("head_dim", head_dim, "size of one head; 0: width / heads", {.min = 0, .max = 1 << 24});
    f("ffn", ffn, "hidden size of the MLP; 0: 4 x width (gpt2), else 8/3 x width rounded up to 64",
      {.min = 0, .max = 1 << 26});
    f("vocab", vocab, "size of the vocabulary; 0: that of the tokenizer", {.min = 0, .max = 1 << 30});
    f("context", context, "longest sequence", {.min = 1, .max = 1 << 30});
    f("norm_eps", norm_eps, "epsilon of the norms", {.min = 0, .max = 1});
    f("rope_theta", rope_theta, "base of the rotary angles, which all families but gpt2 have", {.min = 1});
    f("tied", tied, "share token embedding and output head");
    f("attention_bias", attention_bias, "biases in the attention projections (llama, qwen3)");
    f("activation", activation, "non-linearity of the MLP; auto: gelu_new (gpt2), else silu");
  }

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace hpcdl::io
