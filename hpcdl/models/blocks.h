#pragma once
// Functions shared by the families.

#include <initializer_list>
#include <string>

#include "hpcdl/io/model_config.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/nn/norm.h"
#include "hpcdl/nn/vocabulary_share.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/dropout/dropout.h"

namespace hpcdl::models {

inline constexpr float kInitStd = 0.02f;  // of GPT-2, also used by Llama training recipes

/// The attention of a layer. score_scale 0: 1/sqrt(head_dim); cap, window 0: none.
struct Heads {
  int query = 1, key_value = 1;
  float score_scale = 0, cap = 0;
  std::int64_t window = 0;
};

Activation activation_of(io::Activation a);

/// Rows of `table` for ids (B, T), plus rows of `positions` if present, with dropout. Returns (B, T, C) in the compute
/// type. `share`: how ranks of a pipeline divide the table; null: they do not.
Var embed(const nn::Embedding& table, const Var& ids, const nn::ForwardOptions& o, const Var& positions = {},
          const nn::VocabularyShare* share = nullptr);

/// Logits f32 (..., V) of normalised rows h (..., C): over the whole vocabulary, on every rank that shares the head.
Var head_logits(const nn::Weight& head, const Var& h);

/// Causal attention of q (B, T, H*D) over k, v (B, T, Hkv*D), or over the pages of this layer, into which k and v are
/// written first.
Var attend(const Var& q, const Var& k, const Var& v, Heads heads, int layer, const nn::ForwardOptions& o);

/// Whether a block is recorded by the two functions below: of few tokens of a batch, by layers that one op can hold.
bool is_decoding_step(const Var& x, std::initializer_list<const nn::Linear*> layers, const nn::ForwardOptions& o);
/// attend() with the queries, keys and values of norm(x), rotated by the angles of rope(), as one op each.
Var attend_step(const nn::RmsNorm& norm, const nn::Linear& q, const nn::Linear& k, const nn::Linear& v, const Var& x,
                const Var& angles, Heads heads, int layer, const nn::ForwardOptions& o);
/// silu(gate(norm(x))) * up(norm(x)) as one op.
Var gated_step(const nn::RmsNorm& norm, const nn::Linear& gate, const nn::Linear& up, const Var& x);

/// residual + dropout(after(linear(x))): one kernel without dropout and without a norm `after`, which may be null.
Var project(const nn::Linear& linear, const nn::RmsNorm* after, const Var& x, const Var& residual,
            const nn::ForwardOptions& o);

/// One block in its scope, recomputed in backward if the options say so.
template <class F> Var in_block(Graph& g, int layer, const nn::ForwardOptions& o, F&& block) {
  Graph::Scope scope(g, "layers." + std::to_string(layer));
  return o.recompute ? g.checkpoint(block) : block();
}

}  // namespace hpcdl::models
