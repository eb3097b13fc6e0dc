#include "hpcdl/models/blocks.h"

#include <algorithm>

#include "hpcdl/models/attend_across.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/document_attention/document_attention.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/kv_write/kv_write.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"

namespace hpcdl::models {

Activation activation_of(io::Activation a) {
  switch (a) {
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
  return o.dropped(x, o.dropout, part_of_tokens ? s->size() : 1, part_of_tokens ? s->rank : 0);
}

Var rows_of(const nn::Embedding& table, const Var& ids, const nn::ForwardOptions& o, const Var& positions,
            const nn::VocabularyShare* share) {
  Graph& g = ids.graph();
  const DType compute = o.compute;
  if (positions && o.positions)  // their gradient goes to the rows of any positions, not to the first ones
    return add(rows_of(table, ids, o, {}, share), embedding(positions, o.positions, Embedding::Args{.out = compute}));
  const Var places = o.batch && positions ? o.batch->positions : Var();
  if (share) {  // the first rank has the positions
    Graph::Scope scope(g, nn::kVocabularyScope);
    const Var y = vocabulary_embedding(table.weight(g), ids, share->rank == 0 ? positions : Var(),
                                       {compute, table.weight.part.boxes[0].begin[0]}, places);
    return leave(y, share->axis.with("embedding"));
  }
  if (const auto* s = table.weight.shared_as(nn::Place::vocabulary)) {
    const Axis axis = table.weight.axis();
    const Var y = vocabulary_embedding(table.weight(g), ids, positions,
                                       {compute, table.weight.part.boxes[0].begin[0], s->rank == 0}, places);
    return s->scheme == nn::Sharing::sequence ? scatter_rows(y, axis) : leave(y, axis);
  }
  if (!table.weight.quantized()) return embedding(table.weight(g), ids, positions, {.out = compute}, places);
  return table.weight.codec->rows(table.weight.part_vars(g), ids, positions, places, compute);
}

/// Attention over the pages of a layer.
Var attend_to_pages(const Var& q, Heads heads, const nn::PagedBatch::Layer& layer, const nn::PagedBatch& b) {
  return paged_attention(q, layer.keys, layer.values, b.starts, b.lengths, layer.places.pages,
                         {.heads = heads.query,
                          .most_queries = static_cast<int>(b.most_queries),
                          .scale = heads.score_scale,
                          .cap = heads.cap,
                          .window = static_cast<int>(heads.window)});
}

}  // namespace

Var embed(const nn::Embedding& table, const Var& ids, const nn::ForwardOptions& o, const Var& positions,
          const nn::VocabularyShare* share) {
  return drop(table.weight.sharing, rows_of(table, ids, o, positions, share), o);
}

Var head_logits(const nn::Weight& head, const Var& h) {
  Graph& g = h.graph();
  const Var y = head.quantized() ? head.codec->multiply(head.part_vars(g), h, {}, {}, Activation::none, DType::f32)
                                 : linear(h, head.rounded(g, h.dtype()), {},
                                          {.out = DType::f32, .constant_weights = head.constant()});
  const auto* s = head.shared_as(nn::Place::vocabulary);
  return s ? gather_columns(y, s->axis.with("logits"), vocabulary_shares(head.part.whole[0], s->size())) : y;
}

Var attend(const Var& q, const Var& k, const Var& v, Heads heads, int layer, const nn::ForwardOptions& o) {
  if (o.context) return attend_across(q, k, v, heads, *o.context);
  if (o.documents)
    return document_attention(q, k, v, o.positions,
                              {.heads = heads.query,
                               .kv_heads = heads.key_value,
                               .scale = heads.score_scale,
                               .cap = heads.cap,
                               .window = heads.window});
  if (!o.batch)
    return attention(q, k, v,
                     {.heads = heads.query,
                      .kv_heads = heads.key_value,
                      .causal = true,
                      .scale = heads.score_scale,
                      .cap = heads.cap,
                      .window = heads.window});
  const auto& pools = o.batch->layers.at(static_cast<std::size_t>(layer));
  kv_write(pools.keys, pools.values, k, v, pools.places.slots);
  return attend_to_pages(q, heads, pools, *o.batch);
}

/// Tokens for which reading the weights takes longer than their products. A GPU has kernels that join so many rows.
constexpr std::int64_t kMostDecoded = 128;

bool is_decoding_step(const Var& x, std::initializer_list<const nn::Linear*> layers, const nn::ForwardOptions& o) {
  return o.batch && x[0] * x[1] <= kMostDecoded && std::ranges::all_of(layers, [&](const nn::Linear* l) {
           const auto* s = l->weight.sharing;
           return (!s || s->scheme == nn::Sharing::conjugate) && l->has_matrix() && !l->chooses(o);
         });
}

Var attend_step(const nn::RmsNorm& norm, const nn::Linear& q, const nn::Linear& k, const nn::Linear& v, const Var& x,
                const Var& angles, Heads heads, int layer, const nn::ForwardOptions& o) {
  Graph& g = x.graph();
  const auto& pools = o.batch->layers.at(static_cast<std::size_t>(layer));
  const Matrix<Var> matrices[] = {q.matrix(g, x.dtype()), k.matrix(g, x.dtype()), v.matrix(g, x.dtype())};
  const Var rotated =
      norm_qkv(x, norm.weight(g), angles, {o.batch->positions, pools.places.slots}, matrices, pools.keys, pools.values,
               {.head_dim = angles[1], .eps = norm.eps, .constant_weights = q.weight.constant()});
  return attend_to_pages(rotated, heads, pools, *o.batch);
}

Var gated_step(const nn::RmsNorm& norm, const nn::Linear& gate, const nn::Linear& up, const Var& x) {
  Graph& g = x.graph();
  return norm_swiglu(x, norm.weight(g), gate.matrix(g, x.dtype()), up.matrix(g, x.dtype()),
                     {.eps = norm.eps, .constant_weights = gate.weight.constant()});
}

Var project(const nn::Linear& linear, const nn::RmsNorm* after, const Var& x, const Var& residual,
            const nn::ForwardOptions& o) {
  if (after) return add(drop(linear.weight.sharing, (*after)(linear(x, Activation::none, {}, o)), o), residual);
  if (o.dropout > 0) return add(drop(linear.weight.sharing, linear(x, Activation::none, {}, o), o), residual);
  return linear(x, Activation::none, residual, o);
}

}  // namespace hpcdl::models
