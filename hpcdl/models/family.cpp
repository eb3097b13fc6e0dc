#include "hpcdl/models/family.h"

#include "hpcdl/core/error.h"

namespace hpcdl::models {
namespace {

template <class... A> void check(bool ok, fmt::format_string<A...> f, A&&... args) {
  if (!ok) fail_usage("model", f, std::forward<A>(args)...);
}

}  // namespace

const FamilyRow& row_of(io::Family family) {
  switch (family) {
#define HPCDL_CASE(name) \
  case io::Family::name: return name##_row;
    HPCDL_TEXT_FAMILIES(HPCDL_CASE)
#undef HPCDL_CASE
    default: fail_usage("model", "{} reads images, not text", io::enum_name(family));
  }
}

void resolve(io::ModelConfig& c) {
  if (io::is_image_family(c.family)) return;
  check(c.layers > 0 && c.heads > 0 && c.width > 0 && c.context > 0,
        "expected layers, heads, width, context > 0, found {}, {}, {}, {}", c.layers, c.heads, c.width, c.context);
  check(c.kv_heads >= 0 && c.head_dim >= 0 && c.ffn >= 0 && c.vocab >= 0,
        "kv_heads, head_dim, ffn and vocab may not be negative");
  check(c.layers <= io::kMostLayers, "{} layers are too many; at most {} are allowed", c.layers, io::kMostLayers);
  const FamilyRow& row = row_of(c.family);
  const DecoderSpec decoder = row.decoder(c);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0) {
    check(c.width % c.heads == 0, "width {} is not divisible by {} heads; choose another or give head_dim", c.width,
          c.heads);
    c.head_dim = c.width / c.heads;
  }
  using enum io::Activation;
  if (c.ffn == 0) c.ffn = decoder.gated() ? (c.width * 8 / 3 + 63) / 64 * 64 : 4 * c.width;
  if (c.activation == automatic) c.activation = decoder.gated() ? silu : gelu_new;
  check(c.heads % c.kv_heads == 0, "heads {} is not divisible by kv_heads {}", c.heads, c.kv_heads);
  if (row.check) row.check(c);
  check(!decoder.rotary() || c.head_dim % 2 == 0, "rotary embedding needs an even head_dim, found {}", c.head_dim);
  check(decoder.gated() == (c.activation == silu), "activation {} is not available for family {}",
        io::enum_name(c.activation), io::enum_name(c.family));
  check(!c.attention_bias || row.chooses_attention_bias, "family {} has no choice of attention_bias",
        io::enum_name(c.family));
}

}  // namespace hpcdl::models
