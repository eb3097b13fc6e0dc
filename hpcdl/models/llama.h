#pragma once
// Llama (Touvron et al., 2023): RMSNorm, rotary positions (rotate-half), grouped-query attention, SwiGLU, no biases by
// default. Tensor names and layouts are those of transformers' LlamaForCausalLM.

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/rope_angles.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/nn/norm.h"

namespace hpcdl::models {

struct LlamaAttention {
  nn::Linear q_proj, k_proj, v_proj, o_proj;
  int heads = 0, kv_heads = 0, head_dim = 0;

  /// `angles`: the table of rope().
  Var operator()(const Var& x, const Var& residual, const Var& angles, int layer, const nn::ForwardOptions& o) const;
  void visit(auto&& f) { f("q_proj", q_proj), f("k_proj", k_proj), f("v_proj", v_proj), f("o_proj", o_proj); }
};

struct LlamaMlp {
  nn::Linear gate_proj, up_proj, down_proj;

  Var operator()(const Var& x, const Var& residual, const nn::ForwardOptions& o) const;
  void visit(auto&& f) { f("gate_proj", gate_proj), f("up_proj", up_proj), f("down_proj", down_proj); }
};

struct LlamaBlock {
  nn::RmsNorm input_layernorm, post_attention_layernorm;
  LlamaAttention self_attn;
  LlamaMlp mlp;

  Var operator()(const Var& x, const Var& angles, int layer, const nn::ForwardOptions& o) const;
  void visit(auto&& f) {
    f("self_attn", self_attn), f("mlp", mlp), f("input_layernorm", input_layernorm);
    f("post_attention_layernorm", post_attention_layernorm);
  }

 private:
  /// The same for one token of decoding.
  Var step(const Var& x, const Var& angles, int layer, const nn::ForwardOptions& o) const;
};

struct Llama {
  nn::Embedding embed_tokens;  // (V, C)
  std::vector<LlamaBlock> layers;
  nn::RmsNorm last_norm;
  nn::Embedding lm_head;  // (V, C); absent when tied to embed_tokens
  mutable RopeAngles angles;

  explicit Llama(const io::ModelConfig& c);
  /// Embeddings and blocks. tokens: (B, T) i32; returns (B, T, C), before the last norm.
  Var body(const Var& tokens, const nn::ForwardOptions& o) const;
  Var norm(const Var& x) const { return last_norm(x); }
  const nn::Weight& head() const { return lm_head.weight.spec ? lm_head.weight : embed_tokens.weight; }

  void visit(auto&& f) {
    f("model.embed_tokens", embed_tokens), f("model.layers", layers), f("model.norm", last_norm);
    if (lm_head.weight.spec) f("lm_head", lm_head);
  }
};

}  // namespace hpcdl::models
