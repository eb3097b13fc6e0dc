#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/nn/context_share.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/tensor.h"

namespace hpcdl::nn {

/// A pass over the packed tokens of several sequences, whose keys and values lie in pages (ops/kv_write,
/// ops/paged_attention).
struct PagedBatch {
  /// Where keys and values lie. Layers that keep those of other tokens have pages of their own.
  struct Places {
    Var slots;  // of each token
    Var pages;  // of each sequence
  };
  struct Layer {
    Var keys, values;  // pools
    Places places;
  };
  std::vector<Layer> layers;
  Var positions;                  // of each token
  Var starts, lengths;            // of each sequence
  Var adapters;                   // of each token, which of the choices of layers it has, or -1; absent: all have none
  std::int64_t most_queries = 0;  // tokens that a sequence has at most
  std::int64_t context = 0;       // positions are less
};

/// How a forward pass is recorded.
struct ForwardOptions {
  /// Type of activations: f32, or bf16 with f32 accumulation. Parameters keep their own type.
  DType compute = DType::f32;
  /// Drop the activations of each block and recompute them in the backward pass.
  bool recompute = false;
  float dropout = 0;
  /// The index of this part of the global batch: random draws are those of one program over all parts.
  std::int64_t part = 0;
  /// Largest logits (bytes) that a training program keeps for its backward pass; larger ones are computed twice, in
  /// chunks.
  std::int64_t keep_logits_bytes = std::int64_t{256} << 20;
  /// Training programs compute the head's gradients with its loss (ops/lm_head_gradient): logits are neither stored
  /// nor computed twice.
  bool head_gradient_now = false;
  /// Training programs record the two layers of a GELU MLP as one op (ops/mlp).
  bool fused_mlp = false;
  /// A training pass: batch norms use the statistics of the batch, and update their running ones.
  bool training = false;
  /// The ranks over whose batches batch norms compute common statistics, and mixtures of experts count choices.
  std::optional<Axis> shared_batch = {};
  /// The share of every target's weight that is spread over all classes (image models).
  float label_smoothing = 0;
  /// Image models: every image is a mixture of two, each with its target and its weight.
  bool mixup = false;
  /// Rows hold several documents, which do not attend to each other: positions, an input, are 0 where one begins.
  bool documents = false;
  /// Non-null: tokens (1, T) of these sequences follow those in the pools, and their keys and values join them.
  const PagedBatch* batch = nullptr;
  /// Non-null: this rank has a part of the tokens of every sequence, (B chunks, T / all chunks); `positions`, I32 like
  /// the tokens, says where each is in its sequence, or in its document.
  const ContextShare* context = nullptr;
  Var positions = {};
  /// If ranks divide the experts of mixtures: a training pass has room for this many times the tokens that a rank sends to
  /// another in a layer if it chooses all experts equally often; 0: for all tokens. What does not fit is dropped, and
  /// counted.
  double expert_capacity = 0;

  /// The number of tokens of a whole sequence, also if this rank has only a part of it.
  std::int64_t length(const Var& tokens) const { return tokens[1] * (context ? context->all_chunks() : 1); }
  /// Dropout of x (B, T, ...), of `ranks` parts into which the ranks that share the layers divide it, the `rank`-th.
  Var dropped(const Var& x, float p, int ranks = 1, int rank = 0) const;
  /// All options but the batch and the context as text, as the key of a recorded pass (ProgramCache).
  std::string key() const;
};

}  // namespace hpcdl::nn
