#include "hpcdl/models/blocks.h"

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"

namespace hpcdl::models {

Activation activation_of(const io::ModelConfig& c) {
  return c.activation == io::Activation::gelu ? Activation::gelu_erf : Activation::gelu_tanh;
}

Var embed(const nn::Weight& table, const Var& ids, DType compute, const Var& positions) {
  Graph& g = ids.graph();
  if (!table.quantized()) return embedding(table(g), ids, positions, {.out = compute});
  const auto w = table.int4(g);
  return int4_embedding(ids, w.packed, w.scale, w.offset, positions, {.dtype = compute});
}

Var head_logits(const nn::Weight& head, const Var& h) {
  Graph& g = h.graph();
  if (!head.quantized()) return linear(h, head.rounded(g, h.dtype()), {}, {.out = DType::f32});
  const auto w = head.int4(g);
  return int4_linear(h, w.packed, w.scale, w.offset, {}, {}, {.out = DType::f32, .constant_weights = true});
}

Var attend(const Var& q, const Var& k, const Var& v, Heads heads, int layer, const nn::ForwardOptions& o) {
  const Attention::Args args{.heads = heads.query, .kv_heads = heads.key_value, .causal = true};
  if (!o.cache) return attention(q, k, v, args);
  Graph& g = q.graph();
  const auto i = static_cast<std::size_t>(layer);
  const Var keys = g.constant(fmt::format("cache.keys.{}", layer), o.cache->keys[i]);
  const Var values = g.constant(fmt::format("cache.values.{}", layer), o.cache->values[i]);
  append_to_cache(keys, values, k, v);
  auto cached = args;
  cached.cached = true;
  return attention(q, keys, values, cached);
}

Var project(const nn::Linear& linear, const Var& x, const Var& residual, const nn::ForwardOptions& o) {
  if (o.dropout > 0) return add(dropout(linear(x), o.dropout, o.part), residual);
  return linear(x, Activation::none, residual);
}

}  // namespace hpcdl::models
