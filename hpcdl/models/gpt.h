#pragma once
// GPT-2 (Radford et al., 2019): learned positions, pre-LayerNorm, packed q/k/v, GELU MLP, tied embeddings.
// Tensor names and layouts are those of transformers' GPT2LMHeadModel (Conv1D weights are stored (in, out)).

#include "hpcdl/io/model_config.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/nn/norm.h"

namespace hpcdl::models {

struct GptAttention {
  nn::Linear c_attn, c_proj;  // (C, 3C), (C, C)
  int heads = 0;

  /// x: (B, T, C) normalised; returns residual + projected attention.
  Var operator()(const Var& x, const Var& residual, int layer, const nn::ForwardOptions& o) const;
  void visit(auto&& f) { f("c_attn", c_attn), f("c_proj", c_proj); }
};

struct GptMlp {
  nn::Linear c_fc, c_proj;  // (C, 4C), (4C, C)
  Activation activation = Activation::gelu_tanh;

  Var operator()(const Var& x, const Var& residual, const nn::ForwardOptions& o) const;
  void visit(auto&& f) { f("c_fc", c_fc), f("c_proj", c_proj); }
};

struct GptBlock {
  nn::LayerNorm ln_1, ln_2;
  GptAttention attn;
  GptMlp mlp;

  Var operator()(const Var& x, int layer, const nn::ForwardOptions& o) const;
  void visit(auto&& f) { f("ln_1", ln_1), f("attn", attn), f("ln_2", ln_2), f("mlp", mlp); }
};

struct Gpt {
  nn::Embedding wte, wpe;  // (V, C), (context, C)
  std::vector<GptBlock> h;
  nn::LayerNorm ln_f;
  nn::Embedding lm_head;  // (V, C); absent when tied to wte

  explicit Gpt(const io::ModelConfig& c);
  /// Embeddings and blocks. tokens: (B, T) i32; returns (B, T, C), before the last norm.
  Var body(const Var& tokens, const nn::ForwardOptions& o) const;
  Var norm(const Var& x) const { return ln_f(x); }
  const nn::Weight& head() const { return lm_head.weight.spec ? lm_head.weight : wte.weight; }

  void visit(auto&& f) {
    f("transformer.wte", wte), f("transformer.wpe", wpe), f("transformer.h", h), f("transformer.ln_f", ln_f);
    if (lm_head.weight.spec) f("lm_head", lm_head);
  }
};

}  // namespace hpcdl::models
