#include "hpcdl/models/encoder.h"

#include "hpcdl/models/blocks.h"
#include "hpcdl/ops/packed_attention/packed_attention.h"

namespace hpcdl::models {

namespace {

nn::Linear dense(std::int64_t in, std::int64_t out) { return {in, out, true, kInitStd}; }

}  // namespace

EncoderBlock::EncoderBlock(const EncoderConfig& c)
    : query(dense(c.width, c.width)),
      key(dense(c.width, c.width)),
      value(dense(c.width, c.width)),
      attended(dense(c.width, c.width)),
      up(dense(c.width, c.ffn)),
      down(dense(c.ffn, c.width)),
      attended_norm(c.width, static_cast<float>(c.norm_eps)),
      norm(c.width, static_cast<float>(c.norm_eps)) {}

Var EncoderBlock::operator()(const Var& in, const PackedTexts& texts, std::int64_t heads, Activation activation) const {
  const Var seen = packed_attention(query(in), key(in), value(in), texts.starts,
                                    {.heads = static_cast<int>(heads), .most = texts.most});
  const Var x = attended_norm(attended(seen, Activation::none, in));
  return norm(down(up(x, activation), Activation::none, x));
}

Encoder::Encoder(const EncoderConfig& c)
    : tokens(c.vocab, c.width, kInitStd),
      positions(c.context, c.width, kInitStd),
      norm(c.width, static_cast<float>(c.norm_eps)),
      heads(c.heads),
      activation(activation_of(c.activation)) {
  for (std::int64_t i = 0; i < c.layers; ++i) blocks.emplace_back(c);
}

Var Encoder::operator()(const PackedTexts& texts, DType compute) const {
  Graph& g = texts.tokens.graph();
  Var x = norm(embedding(tokens.weight(g), texts.tokens, positions.weight(g), {.out = compute}, texts.positions));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Graph::Scope scope(g, "layer." + std::to_string(i));
    x = blocks[i](x, texts, heads, activation);
  }
  return x;
}

}  // namespace hpcdl::models
