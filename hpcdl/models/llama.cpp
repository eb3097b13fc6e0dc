#include "hpcdl/models/llama.h"

#include "hpcdl/models/blocks.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl::models {

Llama::Llama(const io::ModelConfig& c) : angles(c.context, c.head_dim, c.rope_theta, c.rope_scaling) {
  const std::int64_t C = c.width, D = c.head_dim;
  const float residual_std = kInitStd / std::sqrt(2.0f * static_cast<float>(c.layers));
  embed_tokens = nn::Embedding(c.vocab, C, kInitStd);
  last_norm = nn::RmsNorm(C, static_cast<float>(c.norm_eps));
  if (!c.tied) lm_head = nn::Embedding(c.vocab, C, kInitStd);
  (c.tied ? embed_tokens : lm_head).weight.multiplied = true;
  for (int i = 0; i < c.layers; ++i) {
    LlamaBlock b;
    b.input_layernorm = b.post_attention_layernorm = nn::RmsNorm(C, static_cast<float>(c.norm_eps));
    auto& a = b.self_attn;
    a.heads = static_cast<int>(c.heads);
    a.kv_heads = static_cast<int>(c.kv_heads);
    a.head_dim = static_cast<int>(D);
    a.q_proj = nn::Linear(C, c.heads * D, c.attention_bias, kInitStd);
    a.k_proj = nn::Linear(C, c.kv_heads * D, c.attention_bias, kInitStd);
    a.v_proj = nn::Linear(C, c.kv_heads * D, c.attention_bias, kInitStd);
    a.o_proj = nn::Linear(c.heads * D, C, c.attention_bias, residual_std);
    b.mlp.gate_proj = nn::Linear(C, c.ffn, c.mlp_bias, kInitStd);
    b.mlp.up_proj = nn::Linear(C, c.ffn, c.mlp_bias, kInitStd);
    b.mlp.down_proj = nn::Linear(c.ffn, C, c.mlp_bias, residual_std);
    layers.push_back(std::move(b));
  }
}

Var Llama::body(const Var& tokens, const nn::ForwardOptions& o) const {
  Graph& g = tokens.graph();
  Var x;
  {
    Graph::Scope scope(g, "embedding");
    x = embed(embed_tokens, tokens, o);
  }
  const Var table = g.constant("rope.angles", angles.first(o.cache ? o.cache->keys[0][1] : tokens[1]));
  for (std::size_t i = 0; i < layers.size(); ++i)
    x = in_block(g, static_cast<int>(i), o, [&] { return layers[i](x, table, static_cast<int>(i), o); });
  return x;
}

Var LlamaBlock::operator()(const Var& x, const Var& angles, int layer, const nn::ForwardOptions& o) const {
  if (is_decoding_step(x, self_attn.q_proj, o)) return step(x, angles, layer, o);
  const Var y = self_attn(input_layernorm(x), x, angles, layer, o);
  return mlp(post_attention_layernorm(y), y, o);
}

Var LlamaBlock::step(const Var& x, const Var& angles, int layer, const nn::ForwardOptions& o) const {
  Graph& g = x.graph();
  const auto& a = self_attn;
  Var y;
  {
    Graph::Scope scope(g, "attn");
    const Var seen =
        attend_step(input_layernorm, a.q_proj, a.k_proj, a.v_proj, x, angles, {a.heads, a.kv_heads}, layer, o);
    y = project(a.o_proj, seen, x, o);
  }
  Graph::Scope scope(g, "mlp");
  return project(mlp.down_proj, gated_step(post_attention_layernorm, mlp.gate_proj, mlp.up_proj, y), y, o);
}

Var LlamaAttention::operator()(const Var& x, const Var& residual, const Var& angles, int layer,
                               const nn::ForwardOptions& o) const {
  Graph::Scope scope(x.graph(), "attn");
  const Rope::Args rotary{.head_dim = head_dim};
  const Var q = rope(q_proj(x), angles, rotary), k = rope(k_proj(x), angles, rotary);
  const Var y = attend(q, k, v_proj(x), {heads, kv_heads}, layer, o);
  return project(o_proj, y, residual, o);
}

Var LlamaMlp::operator()(const Var& x, const Var& residual, const nn::ForwardOptions& o) const {
  Graph::Scope scope(x.graph(), "mlp");
  return project(down_proj, swiglu(gate_proj(x), up_proj(x)), residual, o);
}

}  // namespace hpcdl::models
