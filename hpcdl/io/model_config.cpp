#include "hpcdl/io/model_config.h"

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

template <class... A> void check(bool ok, fmt::format_string<A...> f, A&&... args) {
  if (!ok) fail_usage("model", f, std::forward<A>(args)...);
}

}  // namespace

void ModelConfig::resolve() {
  if (is_image_family(family)) return;  // they have their own config: models/image_config.h
  check(layers > 0 && heads > 0 && width > 0 && context > 0,
        "expected layers, heads, width, context > 0, found {}, {}, {}, {}", layers, heads, width, context);
  check(kv_heads >= 0 && head_dim >= 0 && ffn >= 0 && vocab >= 0,
        "kv_heads, head_dim, ffn and vocab may not be negative");
  check(layers <= kMostLayers, "{} layers are too many; at most {} are allowed", layers, kMostLayers);
  const bool gpt2 = family == Family::gpt2;
  if (kv_heads == 0) kv_heads = heads;
  if (head_dim == 0) {
    check(width % heads == 0, "width {} is not divisible by {} heads; choose another width or set head_dim", width,
          heads);
    head_dim = width / heads;
  }
  if (ffn == 0) ffn = gpt2 ? 4 * width : (width * 8 / 3 + 63) / 64 * 64;
  if (activation == Activation::automatic) activation = gpt2 ? Activation::gelu_new : Activation::silu;
  check(heads % kv_heads == 0, "heads {} is not divisible by kv_heads {}", heads, kv_heads);
  check(!gpt2 || kv_heads == heads, "family gpt2 has kv_heads == heads, found {} and {}; use llama for grouped heads",
        kv_heads, heads);
  check(!gpt2 || head_dim * heads == width, "family gpt2 has head_dim * heads == width, found {} * {} and {}", head_dim,
        heads, width);
  check(gpt2 || head_dim % 2 == 0, "rotary embedding needs an even head_dim, found {}", head_dim);
  check(gpt2 == (activation != Activation::silu), "activation {} is not available for family {}", enum_name(activation),
        enum_name(family));
}

}  // namespace hpcdl::io
