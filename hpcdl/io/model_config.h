#pragma once
// The shape of a model: what TOML [model] and the config.json of a Hugging Face folder both describe.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/dtype.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/ops/rope/scaling.h"

namespace hpcdl::io {

enum class Family { gpt2, llama, simple_cnn, resnet18 };
template <> struct EnumNames<Family> {
  static constexpr std::pair<Family, std::string_view> values[] = {{Family::gpt2, "gpt2"},
                                                                   {Family::llama, "llama"},
                                                                   {Family::simple_cnn, "simple_cnn"},
                                                                   {Family::resnet18, "resnet18"}};
};
/// Classifiers of images; the others are models of text.
constexpr bool is_image_family(Family f) { return f == Family::simple_cnn || f == Family::resnet18; }

/// gelu_new is the tanh form. automatic: the family's own (gelu_new, silu).
enum class Activation { automatic, gelu_new, gelu, relu, silu };
template <> struct EnumNames<Activation> {
  static constexpr std::pair<Activation, std::string_view> values[] = {{Activation::automatic, "auto"},
                                                                       {Activation::gelu_new, "gelu_new"},
                                                                       {Activation::gelu, "gelu"},
                                                                       {Activation::relu, "relu"},
                                                                       {Activation::silu, "silu"}};
};

/// How the weights of a folder are packed ("quantization_config" of config.json).
struct QuantConfig {
  std::string method = "hpcdl_int4";
  std::int64_t bits = 4, group_size = 64;
  bool symmetric = true;
  bool operator==(const QuantConfig&) const = default;
};

inline constexpr std::int64_t kMostLayers = 4096;  // planning 100,000 layers took 24 s and 6.8 GB

struct ModelConfig {
  Family family = Family::gpt2;
  std::int64_t layers = 6, heads = 6, width = 384, context = 256;
  std::int64_t kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;  // 0: derived
  double norm_eps = 1e-5, rope_theta = 10'000;
  bool tied = true;             // lm_head shares the token embedding
  bool attention_bias = false;  // llama only; gpt2 has biases everywhere
  Activation activation = Activation::automatic;

  // Not set by users: taken from the model folder or from the tokenizer.
  bool mlp_bias = false;          // llama only
  RopeScaling rope_scaling = {};  // llama only
  std::optional<std::int64_t> bos = {};
  std::vector<std::int64_t> eos = {};  // any of them ends a text
  DType dtype = DType::f32;            // of the stored weights
  std::optional<QuantConfig> quant = {};

  void visit(auto&& f) {
    f("family", family, "architecture: gpt2 and llama read text, simple_cnn and resnet18 images");
    f("layers", layers, "transformer blocks", {.min = 1, .max = kMostLayers});
    f("heads", heads, "attention heads", {.min = 1, .max = 100'000});
    f("kv_heads", kv_heads, "heads of keys and values; 0: as many as heads", {.min = 0, .max = 100'000});
    f("width", width, "size of the residual stream", {.min = 1, .max = 1 << 24});
    f("head_dim", head_dim, "size of one head; 0: width / heads", {.min = 0, .max = 1 << 24});
    f("ffn", ffn, "hidden size of the MLP; 0: 4 x width (gpt2), 8/3 x width rounded up to 64 (llama)",
      {.min = 0, .max = 1 << 26});
    f("vocab", vocab, "size of the vocabulary; 0: that of the tokenizer", {.min = 0, .max = 1 << 30});
    f("context", context, "longest sequence", {.min = 1, .max = 1 << 30});
    f("norm_eps", norm_eps, "epsilon of the norms", {.min = 0, .max = 1});
    f("rope_theta", rope_theta, "base of the rotary angles (llama)", {.min = 1});
    f("tied", tied, "share token embedding and output head");
    f("attention_bias", attention_bias, "biases in the attention projections (llama)");
    f("activation", activation, "non-linearity of the MLP; auto: gelu_new (gpt2), silu (llama)");
  }

  /// Replaces zeros and `automatic` by the values that they stand for (vocab stays 0 if unknown), then checks that the
  /// numbers are consistent; throws UsageError "[model] ..." that says which are not.
  void resolve();
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace hpcdl::io
