#include "hpcdl/models/family.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/moe_route/moe_route.h"

namespace hpcdl::models {
namespace {

template <class... A> void check(bool ok, fmt::format_string<A...> f, A&&... args) {
  if (!ok) fail_usage("model", f, std::forward<A>(args)...);
}

void resolve_windows(io::ModelConfig& c, const FamilyRow& row, const DecoderSpec& decoder) {
  check(c.window == 0 || row.has_windows, "family {} has no attention windows, found {}", io::enum_name(c.family),
        c.window);
  check(c.window >= 0, "an attention window may not be negative, found {}", c.window);
  if (decoder.local_angles && c.window == 0) c.window = c.context;  // sliding layers differ in their angles, too
  if (c.window > 0 && c.sliding.empty())
    for (std::int64_t i = 0; i < c.layers; ++i) c.sliding.push_back(!row.slides || row.slides(i));
  check(c.sliding.empty() || std::ssize(c.sliding) == c.layers, "there are {} types of layers for {} layers",
        c.sliding.size(), c.layers);
  const bool hides = c.window > 0 && c.window < c.context && std::ranges::count(c.sliding, true) > 0;
  if (!hides && !decoder.local_angles) c.window = 0, c.sliding.clear();
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
  check(c.head_dim <= Attention::kMaxHeadDim, "heads of {} elements are not supported; at most {}", c.head_dim,
        Attention::kMaxHeadDim);
  check(row.mixture || (c.chosen_experts == 0 && c.expert_ffn == 0),
        "family {} has no experts, found experts_per_token = {} and expert_ffn = {}", io::enum_name(c.family),
        c.chosen_experts, c.expert_ffn);
  check(c.ffn == 0 || c.expert_ffn == 0 || c.ffn == c.expert_ffn,
        "the MLPs of family {} are its experts, found ffn = {} and expert_ffn = {}: give one of them",
        io::enum_name(c.family), c.ffn, c.expert_ffn);
  if (c.expert_ffn > 0) c.ffn = std::exchange(c.expert_ffn, 0);
  using enum io::Activation;
  if (c.ffn == 0) c.ffn = decoder.gated() ? (c.width * 8 / 3 + 63) / 64 * 64 : 4 * c.width;
  if (c.activation == automatic) c.activation = decoder.gated() ? row.gate : gelu_new;
  resolve_windows(c, row, decoder);
  check(row.mixture ? c.experts >= 1 && c.experts <= MoeRoute::kMostExperts && c.chosen_experts >= 1 &&
                          c.chosen_experts <= c.experts
                    : c.experts == 0,
        "family {}: expected {}, found {} experts, of which a token goes through {}", io::enum_name(c.family),
        row.mixture ? fmt::format("1 to {} experts, and at most as many for a token", MoeRoute::kMostExperts)
                    : "no experts",
        c.experts, c.chosen_experts);
  if (c.score_divisor == static_cast<double>(c.head_dim)) c.score_divisor = 0;
  check(c.heads % c.kv_heads == 0, "heads {} is not divisible by kv_heads {}", c.heads, c.kv_heads);
  if (row.check) row.check(c);
  check(!decoder.rotary() || (c.rotated() > 0 && c.rotated() % 2 == 0),
        "rotary embedding needs an even number of elements of a head, found {} of {}", c.rotated(), c.head_dim);
  const bool gates = c.activation == silu || c.activation == gelu_new;
  check(decoder.gated() ? gates : c.activation != silu, "activation {} is not available for family {}",
        io::enum_name(c.activation), io::enum_name(c.family));
  using Kind = RopeScaling::Kind;
  const auto& rope = c.rope_scaling;
  const auto angles = static_cast<std::size_t>(c.rotated() / 2);
  check(rope.kind != Kind::longrope || (rope.short_factors.size() == angles && rope.long_factors.size() == angles),
        "longrope needs {} short and long factors, one for each rotary angle, found {} and {}", angles,
        rope.short_factors.size(), rope.long_factors.size());
  check(!c.attention_bias || row.chooses_attention_bias, "family {} has no choice of attention_bias",
        io::enum_name(c.family));
}

}  // namespace hpcdl::models
