#include "hpcdl/models/blocks.h"

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"

namespace hpcdl::models {

Activation activation_of(const io::ModelConfig& c) {
  switch (c.activation) {
    case io::Activation::gelu: return Activation::gelu_erf;
    case io::Activation::relu: return Activation::relu;
    default: return Activation::gelu_tanh;
  }
}

namespace {

Var drop(const nn::Split* split, const Var& x, const nn::ForwardOptions& o) {
  return split ? split->dropout(x, o.dropout, o.part) : dropout(x, o.dropout, o.part);
}

Var rows_of(const nn::Embedding& table, const Var& ids, DType compute, const Var& positions) {
  Graph& g = ids.graph();
  if (table.split) return table.split->embed(table, ids, compute, positions);
  if (!table.weight.quantized()) return embedding(table.weight(g), ids, positions, {.out = compute});
  const auto w = table.weight.int4(g);
  return int4_embedding(ids, w.packed, w.scale, w.offset, positions, {.dtype = compute});
}

}  // namespace

Var embed(const nn::Embedding& table, const Var& ids, const nn::ForwardOptions& o, const Var& positions) {
  return drop(table.split, rows_of(table, ids, o.compute, positions), o);
}

Var head_logits(const nn::Weight& head, const Var& h) {
  Graph& g = h.graph();
  if (!head.quantized())
    return linear(h, head.rounded(g, h.dtype()), {}, {.out = DType::f32, .constant_weights = head.constant()});
  const auto w = head.int4(g);
  return int4_linear(h, w.packed, w.scale, w.offset, {}, {}, {.out = DType::f32, .constant_weights = true});
}

Var attend(const Var& q, const Var& k, const Var& v, Heads heads, int layer, const nn::ForwardOptions& o) {
  const Attention::Args args{.heads = heads.query, .kv_heads = heads.key_value, .causal = true};
  if (!o.cache) return attention(q, k, v, args);
  Graph& g = q.graph();
  const auto i = static_cast<std::size_t>(layer);
  const Var keys = g.constant(nn::KvCache::name_of_keys(layer), o.cache->keys[i]);
  const Var values = g.constant(nn::KvCache::name_of_values(layer), o.cache->values[i]);
  append_to_cache(keys, values, k, v);
  auto cached = args;
  cached.cached = true;
  return attention(q, keys, values, cached);
}

Var project(const nn::Linear& linear, const Var& x, const Var& residual, const nn::ForwardOptions& o) {
  if (o.dropout > 0) return add(drop(linear.split, linear(x), o), residual);
  return linear(x, Activation::none, residual);
}

}  // namespace hpcdl::models
