#include "hpcdl/models/gpt.h"

#include "hpcdl/models/blocks.h"

namespace hpcdl::models {

Gpt::Gpt(const io::ModelConfig& c) {
  const std::int64_t C = c.width, F = c.ffn;
  const float residual_std = kInitStd / std::sqrt(2.0f * static_cast<float>(c.layers));
  wte = nn::Embedding(c.vocab, C, kInitStd);
  wpe = nn::Embedding(c.context, C, kInitStd);
  ln_f = nn::LayerNorm(C, static_cast<float>(c.norm_eps));
  if (!c.tied) lm_head = nn::Embedding(c.vocab, C, kInitStd);
  (c.tied ? wte : lm_head).weight.multiplied = true;
  using nn::Layout;
  for (int i = 0; i < c.layers; ++i) {
    GptBlock b;
    b.ln_1 = b.ln_2 = nn::LayerNorm(C, static_cast<float>(c.norm_eps));
    b.attn.heads = static_cast<int>(c.heads);
    b.attn.c_attn = nn::Linear(C, 3 * C, true, kInitStd, Layout::in_out);
    b.attn.c_proj = nn::Linear(C, C, true, residual_std, Layout::in_out);
    b.mlp.c_fc = nn::Linear(C, F, true, kInitStd, Layout::in_out);
    b.mlp.c_proj = nn::Linear(F, C, true, residual_std, Layout::in_out);
    b.mlp.activation = activation_of(c);
    h.push_back(std::move(b));
  }
}

Var Gpt::body(const Var& tokens, const nn::ForwardOptions& o) const {
  Graph& g = tokens.graph();
  Var x;
  {
    Graph::Scope scope(g, "embedding");
    x = embed(wte, tokens, o, wpe.weight(g));
  }
  for (std::size_t i = 0; i < h.size(); ++i)
    x = in_block(g, static_cast<int>(i), o, [&] { return h[i](x, static_cast<int>(i), o); });
  return x;
}

Var GptBlock::operator()(const Var& x, int layer, const nn::ForwardOptions& o) const {
  const Var y = attn(ln_1(x), x, layer, o);
  return mlp(ln_2(y), y, o);
}

Var GptAttention::operator()(const Var& x, const Var& residual, int layer, const nn::ForwardOptions& o) const {
  Graph& g = x.graph();
  Graph::Scope scope(g, "attn");
  const Var qkv = c_attn(x);
  const auto C = qkv[-1] / 3;
  const Var y = attend(g.slice(qkv, 0, C), g.slice(qkv, C, C), g.slice(qkv, 2 * C, C), {heads, heads}, layer, o);
  return project(c_proj, y, residual, o);
}

Var GptMlp::operator()(const Var& x, const Var& residual, const nn::ForwardOptions& o) const {
  Graph::Scope scope(x.graph(), "mlp");
  if (o.fused_mlp && o.dropout == 0 && !c_fc.weight.quantized()) return nn::mlp(c_fc, c_proj, x, activation, residual);
  return project(c_proj, c_fc(x, activation), residual, o);
}

}  // namespace hpcdl::models
