#pragma once
// BERT (Devlin et al., 2019): learned positions, attention to all tokens of a text, a norm after each addition to the
// residual stream.

#include <string>
#include <vector>

#include "hpcdl/models/encoder_config.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/nn/norm.h"

namespace hpcdl::models {

/// Texts whose tokens are packed; i32 operands.
struct PackedTexts {
  Var tokens;             // (1, T)
  Var positions;          // (T): of each token in its text
  Var starts;             // (R + 1): the first token of each text, and T
  std::int64_t most = 0;  // tokens of a text; 0: T
};

struct EncoderBlock {
  nn::Linear query, key, value, attended, up, down;
  nn::LayerNorm attended_norm, norm;

  explicit EncoderBlock(const EncoderConfig& c);
  Var operator()(const Var& x, const PackedTexts& texts, std::int64_t heads, Activation activation) const;
  void visit(auto&& f) {
    f("attention.self.query", query), f("attention.self.key", key), f("attention.self.value", value);
    f("attention.output.dense", attended), f("attention.output.LayerNorm", attended_norm);
    f("intermediate.dense", up), f("output.dense", down), f("output.LayerNorm", norm);
  }
};

struct Encoder {
  nn::Embedding tokens;     // (V, C)
  nn::Embedding positions;  // (context, C), each with the embedding of the first segment, which all tokens have
  nn::LayerNorm norm;
  std::vector<EncoderBlock> blocks;
  std::int64_t heads;
  Activation activation;

  explicit Encoder(const EncoderConfig& c);
  /// The last states, (1, T, C) of type `compute`.
  Var operator()(const PackedTexts& texts, DType compute) const;
  void visit(auto&& f) {
    f("bert.embeddings.word_embeddings", tokens), f("bert.embeddings.position_embeddings", positions);
    f("bert.embeddings.LayerNorm", norm), f("bert.encoder.layer", blocks);
  }
};

}  // namespace hpcdl::models
