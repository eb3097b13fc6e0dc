#include "hpcdl/models/decoder.h"

#include "hpcdl/core/error.h"
#include "hpcdl/models/blocks.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl::models {
namespace {

const nn::Linear& linear_of(const auto& block, BlockPart part) { return std::get<nn::Linear>(block.at(part)); }

Var normalised(const auto& norm, const Var& x) {
  if (const auto* rms = std::get_if<nn::RmsNorm>(&norm)) return (*rms)(x);
  return std::get<nn::LayerNorm>(norm)(x);
}

}  // namespace

Decoder::Decoder(const io::ModelConfig& c, const DecoderSpec& spec)
    : spec_(spec), heads_(c.heads), kv_heads_(c.kv_heads), head_dim_(c.head_dim), activation_(activation_of(c)) {
  tokens_ = nn::Embedding(c.vocab, c.width, kInitStd);
  if (spec.rotary()) angles_.emplace(c.context, c.head_dim, c.rope_theta, c.rope_scaling);
  else positions_ = nn::Embedding(c.context, c.width, kInitStd);
  last_norm_ = make_norm(c);
  if (!c.tied) head_ = nn::Embedding(c.vocab, c.width, kInitStd);
  (c.tied ? tokens_ : head_).weight.multiplied = true;
  blocks_.resize(static_cast<std::size_t>(c.layers));
  for (auto& b : blocks_)
    for (const auto& m : spec.block) b.emplace(m.part, make(m.part, c));
}

Decoder::Module Decoder::make_norm(const io::ModelConfig& c) const {
  const auto eps = static_cast<float>(c.norm_eps);
  if (spec_.layer_norm) return nn::LayerNorm(c.width, eps);
  return nn::RmsNorm(c.width, eps);
}

Decoder::Module Decoder::make(BlockPart part, const io::ModelConfig& c) const {
  const std::int64_t C = c.width, F = c.ffn, Q = c.heads * c.head_dim, K = c.kv_heads * c.head_dim;
  const float residual_std = kInitStd / std::sqrt(2.0f * static_cast<float>(c.layers));
  const auto layer = [&](std::int64_t in, std::int64_t out, bool bias, float std = kInitStd) {
    return nn::Linear(in, out, bias, std, spec_.layout);
  };
  switch (part) {
    case BlockPart::attention_norm:
    case BlockPart::mlp_norm: return make_norm(c);
    case BlockPart::q_norm:
    case BlockPart::k_norm: return nn::RmsNorm(c.head_dim, static_cast<float>(c.norm_eps));
    case BlockPart::q: return layer(C, Q, spec_.qkv_bias);
    case BlockPart::k:
    case BlockPart::v: return layer(C, K, spec_.qkv_bias);
    case BlockPart::qkv: return layer(C, Q + 2 * K, spec_.qkv_bias);
    case BlockPart::o: return layer(Q, C, spec_.o_bias, residual_std);
    case BlockPart::up:
    case BlockPart::gate: return layer(C, F, spec_.mlp_bias);
    case BlockPart::gate_up: return layer(C, 2 * F, spec_.mlp_bias);
    case BlockPart::down: return layer(F, C, spec_.mlp_bias, residual_std);
  }
  fail("model", "there is no part {} of a block", static_cast<int>(part));
}

Var Decoder::body(const Var& tokens, const nn::ForwardOptions& o) const {
  Graph& g = tokens.graph();
  Var x, table;
  {
    Graph::Scope scope(g, "embedding");
    x = embed(tokens_, tokens, o, positions_.weight(g));
  }
  if (angles_) table = g.constant("rope.angles", angles_->first(o.batch ? o.batch->pages[1] * kPageTokens : tokens[1]));
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto& b = blocks_[i];
    const int layer = static_cast<int>(i);
    x = in_block(g, layer, o, [&] { return mlp(b, attention(b, x, table, layer, o), o); });
  }
  return x;
}

Var Decoder::norm(const Var& x) const { return normalised(last_norm_, x); }

/// residual (B, T, C) + the projected attention of its normalised rows. `angles`: the table of rope(), or absent.
Var Decoder::attention(const Block& b, const Var& residual, const Var& angles, int layer,
                       const nn::ForwardOptions& options) const {
  Graph& g = residual.graph();
  const auto& norm = b.at(BlockPart::attention_norm);
  const Heads heads{static_cast<int>(heads_), static_cast<int>(kv_heads_)};
  if (const auto* rms = std::get_if<nn::RmsNorm>(&norm);
      rms && angles && !b.contains(BlockPart::qkv) && !b.contains(BlockPart::q_norm) &&
      is_decoding_step(
          residual, {&linear_of(b, BlockPart::q), &linear_of(b, BlockPart::k), &linear_of(b, BlockPart::v)}, options)) {
    Graph::Scope scope(g, "attn");
    return project(linear_of(b, BlockPart::o),
                   attend_step(*rms, linear_of(b, BlockPart::q), linear_of(b, BlockPart::k), linear_of(b, BlockPart::v),
                               residual, angles, heads, layer, options),
                   residual, options);
  }
  const Var x = normalised(norm, residual);
  Graph::Scope scope(g, "attn");
  const auto D = head_dim_, Q = heads_ * D, K = kv_heads_ * D;
  using enum BlockPart;
  const auto positioned = [&](Var y, BlockPart head_norm) {
    if (b.contains(head_norm)) {
      const Shape flat = y.shape();
      y = g.reshape(normalised(b.at(head_norm), g.reshape(y, {flat[0], flat[1], flat[2] / D, D})), flat);
    }
    return angles ? rope(y, angles, options.batch ? options.batch->positions : Var(), {.head_dim = D}) : y;
  };
  Var queries, keys, values;
  if (b.contains(qkv)) {
    const Var all = linear_of(b, qkv)(x);
    queries = positioned(g.slice(all, 0, Q), q_norm);
    keys = positioned(g.slice(all, Q, K), k_norm);
    values = g.slice(all, Q + K, K);
  } else {
    queries = positioned(linear_of(b, q)(x), q_norm);
    keys = positioned(linear_of(b, k)(x), k_norm);
    values = linear_of(b, v)(x);
  }
  return project(linear_of(b, BlockPart::o), attend(queries, keys, values, heads, layer, options), residual, options);
}

/// residual (B, T, C) + the MLP of its normalised rows.
Var Decoder::mlp(const Block& b, const Var& residual, const nn::ForwardOptions& options) const {
  Graph& g = residual.graph();
  using enum BlockPart;
  const auto& norm = b.at(mlp_norm);
  if (const auto* rms = std::get_if<nn::RmsNorm>(&norm);
      rms && b.contains(gate) && is_decoding_step(residual, {&linear_of(b, gate), &linear_of(b, up)}, options)) {
    Graph::Scope scope(g, "mlp");
    return project(linear_of(b, down), gated_step(*rms, linear_of(b, gate), linear_of(b, up), residual), residual,
                   options);
  }
  const Var x = normalised(norm, residual);
  Graph::Scope scope(g, "mlp");
  Var hidden;
  if (b.contains(gate_up)) {
    const Var both = linear_of(b, gate_up)(x);
    const auto F = both[-1] / 2;
    hidden = swiglu(g.slice(both, 0, F), g.slice(both, F, F));
  } else if (b.contains(gate)) {
    const Var y = linear_of(b, up)(x);
    hidden = swiglu(linear_of(b, gate)(x), y);
  } else if (options.fused_mlp && options.dropout == 0 && !linear_of(b, up).weight.quantized()) {
    return nn::mlp(linear_of(b, up), linear_of(b, down), x, activation_, residual);
  } else {
    hidden = linear_of(b, up)(x, activation_);
  }
  return project(linear_of(b, down), hidden, residual, options);
}

}  // namespace hpcdl::models
