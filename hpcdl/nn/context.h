#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/tensor.h"

namespace hpcdl::nn {

/// Keys and values of the tokens seen so far, per layer: (B, S_max, kv_heads * head_dim) each, owned by the caller.
struct KvCache {
  std::vector<Tensor> keys, values;

  /// Their names in programs.
  static std::string name_of_keys(int layer);
  static std::string name_of_values(int layer);
  void bind(Bindings& to) const;
  /// For this number of layers, without memory: sufficient to record.
  static KvCache described(std::size_t layers, const Spec& spec);
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
  /// The ranks over whose batches batch norms compute common statistics.
  std::optional<Axis> shared_batch = {};
  /// The share of every target's weight that is spread over all classes (image models).
  float label_smoothing = 0;
  /// Image models: every image is a mixture of two, each with its target and its weight.
  bool mixup = false;
  /// Non-null: tokens continue at StepParams::position, after those in the cache, and are appended to it.
  const KvCache* cache = nullptr;

  /// All options as text, as the key of a recorded pass (ProgramCache); for the cache its spec.
  std::string key() const;
};

}  // namespace hpcdl::nn
