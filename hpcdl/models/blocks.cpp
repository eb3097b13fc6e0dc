#include "hpcdl/models/blocks.h"

#include <algorithm>

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"

namespace hpcdl::models {

Activation activation_of(const io::ModelConfig& c) {
  switch (c.activation) {
    case io::Activation::gelu: return Activation::gelu_erf;
    case io::Activation::relu: return Activation::relu;
    default: return Activation::gelu_tanh;
  }
}

namespace {

/// Dropout of activations between the layers: values that all ranks have are dropped equally on all, and a part of the
/// tokens as in the whole.
Var drop(const nn::Sharing* s, const Var& x, const nn::ForwardOptions& o) {
  const bool part_of_tokens = s && s->scheme == nn::Sharing::sequence;
  return dropout(x, o.dropout, part_of_tokens ? o.part * s->size() + s->rank : o.part);
}

Var rows_of(const nn::Embedding& table, const Var& ids, DType compute, const Var& positions) {
  Graph& g = ids.graph();
  if (const auto* s = table.weight.shared_as(nn::Place::vocabulary)) {
    const Axis axis = table.weight.axis();
    const Var y = vocabulary_embedding(table.weight(g), ids, positions,
                                       {compute, table.weight.part.boxes[0].begin[0], s->rank == 0});
    return s->scheme == nn::Sharing::sequence ? scatter_rows(y, axis) : leave(y, axis);
  }
  if (!table.weight.quantized()) return embedding(table.weight(g), ids, positions, {.out = compute});
  return table.weight.codec->rows(table.weight.part_vars(g), ids, positions, compute);
}

Attention::Args attention_args(Heads heads, const nn::ForwardOptions& o) {
  return {.heads = heads.query, .kv_heads = heads.key_value, .causal = true, .cached = o.cache != nullptr};
}

/// The caches of a layer's keys and values.
std::pair<Var, Var> cache_of(Graph& g, int layer, const nn::ForwardOptions& o) {
  const auto i = static_cast<std::size_t>(layer);
  return {g.constant(nn::KvCache::name_of_keys(layer), o.cache->keys[i]),
          g.constant(nn::KvCache::name_of_values(layer), o.cache->values[i])};
}

}  // namespace

Var embed(const nn::Embedding& table, const Var& ids, const nn::ForwardOptions& o, const Var& positions) {
  return drop(table.weight.sharing, rows_of(table, ids, o.compute, positions), o);
}

Var head_logits(const nn::Weight& head, const Var& h) {
  Graph& g = h.graph();
  if (!head.quantized()) {
    const Var y = linear(h, head.rounded(g, h.dtype()), {}, {.out = DType::f32, .constant_weights = head.constant()});
    const auto* s = head.shared_as(nn::Place::vocabulary);
    return s ? gather_columns(y, s->axis.with("logits"), vocabulary_shares(head.part.whole[0], s->size())) : y;
  }
  return head.codec->multiply(head.part_vars(g), h, {}, {}, Activation::none, DType::f32);
}

Var attend(const Var& q, const Var& k, const Var& v, Heads heads, int layer, const nn::ForwardOptions& o) {
  const Attention::Args args = attention_args(heads, o);
  if (!o.cache) return attention(q, k, v, args);
  const auto [keys, values] = cache_of(q.graph(), layer, o);
  append_to_cache(keys, values, k, v);
  return attention(q, keys, values, args);
}

bool is_decoding_step(const Var& x, std::initializer_list<const nn::Linear*> layers, const nn::ForwardOptions& o) {
  return o.cache && x[1] == 1 &&
         std::ranges::all_of(layers, [](const auto* l) { return !l->weight.sharing && l->has_matrix(); });
}

Var attend_step(const nn::RmsNorm& norm, const nn::Linear& q, const nn::Linear& k, const nn::Linear& v, const Var& x,
                const Var& angles, Heads heads, int layer, const nn::ForwardOptions& o) {
  Graph& g = x.graph();
  const auto [keys, values] = cache_of(g, layer, o);
  const Matrix<Var> matrices[] = {q.matrix(g, x.dtype()), k.matrix(g, x.dtype()), v.matrix(g, x.dtype())};
  const Var rotated = norm_qkv(x, norm.weight(g), angles, matrices, keys, values,
                               {.head_dim = angles[1], .eps = norm.eps, .constant_weights = q.weight.constant()});
  return attention(rotated, keys, values, attention_args(heads, o));
}

Var gated_step(const nn::RmsNorm& norm, const nn::Linear& gate, const nn::Linear& up, const Var& x) {
  Graph& g = x.graph();
  return norm_swiglu(x, norm.weight(g), gate.matrix(g, x.dtype()), up.matrix(g, x.dtype()),
                     {.eps = norm.eps, .constant_weights = gate.weight.constant()});
}

Var project(const nn::Linear& linear, const Var& x, const Var& residual, const nn::ForwardOptions& o) {
  if (o.dropout > 0) return add(drop(linear.weight.sharing, linear(x), o), residual);
  return linear(x, Activation::none, residual);
}

}  // namespace hpcdl::models
