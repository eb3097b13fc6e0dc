#pragma once

#include "hpcdl/ops/attention/attention.spec.h"
#include "hpcdl/ops/chunk_attention/chunk_attention.h"

namespace hpcdl::contract {

/// Calls f(b, t, h, last) for every query of every head; it sees the keys 0 .. last of sequence b.
template <class F> void each_chunk_query(const Values& q, const ChunkAttention::Args& a, F&& f) {
  const auto rows = q.dim(0), sequences = rows / 2;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t t = 0; t < q.dim(1); ++t)
      for (std::int64_t h = 0; h < a.heads; ++h) f(r, t, h, (r < sequences ? a.first : a.second) + t);
}

/// One query of one head and what it sees, in double.
struct ChunkQuery {
  const Values &q, &k, &v;
  const ChunkAttention::Args& a;
  std::int64_t row, t, h, last;
  std::int64_t kv = a.kv_heads > 0 ? a.kv_heads : a.heads, depth = q.dim(2) / a.heads, sequence = row % (q.dim(0) / 2);
  double scale = a.scale > 0 ? static_cast<double>(a.scale) : 1 / std::sqrt(static_cast<double>(depth));
  double cap = static_cast<double>(a.cap), size = 0, lse = 0;
  std::int64_t begin = a.window > 0 ? std::max<std::int64_t>(0, last + 1 - a.window) : 0;
  std::vector<double> scores = {};  // of keys begin .. last

  void score() {
    double top = -INFINITY, sum = 0;
    for (auto j = begin; j <= last; ++j) {
      Sum dot;
      for (std::int64_t i = 0; i < depth; ++i) dot.add(scale * q[q_at() + i] * k[k_at(j) + i]);
      scores.push_back(cap > 0 ? cap * std::tanh(dot.value / cap) : dot.value);
      size = std::max(size, dot.scale);
      top = std::isnan(scores.back()) || std::isnan(top) ? NAN : std::max(top, scores.back());
    }
    for (const double s : scores) sum += std::exp(s - top);
    lse = top + std::log(sum);
  }
  std::int64_t q_at() const { return ((row * q.dim(1) + t) * a.heads + h) * depth; }
  std::int64_t k_at(std::int64_t j) const { return ((sequence * k.dim(1) + j) * kv + h * kv / a.heads) * depth; }
  std::int64_t lse_at() const { return (row * a.heads + h) * q.dim(1) + t; }
  double slope(double s) const { return cap > 0 ? 1 - s / cap * (s / cap) : 1; }
};

/// out, lse
inline void chunk_attention_reference(Outputs out, Inputs in, const ChunkAttention::Args& a) {
  const double least = least_normal(in[2].spec.dtype);
  each_chunk_query(in[0], a, [&](auto row, auto t, auto h, auto last) {
    ChunkQuery x{in[0], in[1], in[2], a, row, t, h, last};
    x.score();
    out[1].set(x.lse_at(), x.lse, 1 + x.size + std::fabs(x.lse));
    for (std::int64_t i = 0; i < x.depth; ++i) {
      Sum y;
      double rounded = 0;  // weights may be rounded to the storage type before they are multiplied by values
      for (auto j = x.begin; j <= last; ++j) {
        const double w = std::exp(x.scores[static_cast<std::size_t>(j - x.begin)] - x.lse), v = x.v[x.k_at(j) + i];
        y.add(w * v), rounded += std::max(w, least) * std::fabs(v);
      }
      out[0].set(x.q_at() + i, y.value, y.scale * (1 + 2 * x.size), rounded);
    }
  });
}

/// dq, dk, dv from q, k, v, out, lse, dout
inline void chunk_attention_backward_reference(Outputs out, Inputs in, const ChunkAttention::Args& a) {
  const Values &y = in[3], &lse = in[4], &dy = in[5];
  const double least = least_normal(in[2].spec.dtype);
  const auto add = [](Expected& e, std::int64_t i, double value, double noise, double rounded) {
    const auto at = static_cast<std::size_t>(i);
    e.value[at] += value, e.scale[at] += noise, e.stored[at] += rounded;
  };
  each_chunk_query(in[0], a, [&](auto row, auto t, auto h, auto last) {
    ChunkQuery x{in[0], in[1], in[2], a, row, t, h, last};
    x.score();
    const double l = lse[x.lse_at()], noise = 1 + x.size + std::fabs(l);
    const auto qt = x.q_at();
    Sum delta;
    for (std::int64_t i = 0; i < x.depth; ++i) delta.add(dy[qt + i] * y[qt + i]);
    for (auto j = x.begin; j <= last; ++j) {
      const auto kj = x.k_at(j);
      const double score = x.scores[static_cast<std::size_t>(j - x.begin)], w = std::exp(score - l);
      Sum dp;
      for (std::int64_t i = 0; i < x.depth; ++i) dp.add(dy[qt + i] * x.v[kj + i]);
      const double ds = x.scale * w * (dp.value - delta.value) * x.slope(score), size = w * (dp.scale + delta.scale),
                   stored = x.scale * std::max(size, least);
      for (std::int64_t i = 0; i < x.depth; ++i) {
        const double k = std::fabs(x.k[kj + i]), q = std::fabs(x.q[qt + i]), g = std::fabs(dy[qt + i]);
        add(out[0], qt + i, ds * x.k[kj + i], x.scale * size * k * noise, stored * k);
        add(out[1], kj + i, ds * x.q[qt + i], x.scale * size * q * noise, stored * q);
        add(out[2], kj + i, w * dy[qt + i], w * g * noise, std::max(w, least) * g);
      }
    }
  });
}

/// Variants: the chunks of the first of two ranks, and of the last, with grouped heads.
inline Problem chunk_attention_problem(const Dims& d, DType t, int variant) {
  Problem p;
  const std::int64_t n = d[1], depth = d[2];
  const ChunkAttention::Args a{.heads = variant == 1 ? 4 : 2,
                               .kv_heads = 2,
                               .first = variant == 1 ? n : 0,
                               .second = variant == 1 ? 2 * n : 3 * n};
  const Spec q{{2 * d[0], n, a.heads * depth}, t}, k{{d[0], 4 * n, a.kv_heads * depth}, t};
  p.in = {{q}, {k}, {k}}, p.out = {q};
  p.set_args(a);
  return p;
}

/// The forward pass has two products, the backward pass five; the mask leaves about half of the keys.
inline auto chunk_attention_flops(double products) {
  return [products](const Problem& p) {
    const auto a = p.as<ChunkAttention::Args>();
    const auto n = p.in[0].spec[1];
    return products * static_cast<double>(p.in[0].spec.size() * (a.first + a.second + n));
  };
}

inline Contracts chunk_attention_contracts() {
  auto c = of<ChunkAttention>("chunk_attention",
                              "causal attention of two chunks of each sequence, q (2 B, n, H D) with the tokens from "
                              "first and from second on, over k and v (B, S, Hkv D)",
                              {"q", "k", "v"}, {"out"});
  c.dims = {{"batch", 1, 2}, {"chunk", 1, 20}, {"depth", 1, 70}};
  c.shapes = {{1, 4, 16}, {1, 1, 1}, {2, 3, 5}, {1, 7, 13}, {1, 16, 20}, {2, 5, 33}, {0, 4, 8}, {1, 17, 64}};
  c.typical = {1, 9, 24};
  c.rows = kNoRows;  // a chunk of one token has others before it
  c.timed = {1, 256, 64};
  c.variants = 2;
  c.problem = chunk_attention_problem;
  c.reference = with_args<ChunkAttention::Args>(chunk_attention_reference);
  c.reduction = [](const Problem& p) { return p.in[1].spec[1] + p.in[0].spec[2] / p.as<ChunkAttention::Args>().heads; };
  c.flops = chunk_attention_flops(2);
  c.patterns = {Pattern::positive, Pattern::tiny, Pattern::constant, Pattern::zero};

  auto b = backward_of(c, "chunk_attention_backward", "gradients of chunk_attention, as those of attention",
                       {"q", "k", "v", "out", "lse", "dout"}, {"dq", "dk", "dv"});
  b.problem = [](const Dims& d, DType t, int v) {
    Problem p = chunk_attention_problem(d, t, v);
    const Spec q = p.in[0].spec, lse{{q[0], p.as<ChunkAttention::Args>().heads, q[1]}, DType::f32};
    p.in.insert(p.in.end(), {{q, Role::derived}, {lse, Role::derived}, {q}});
    p.out = {q, p.in[1].spec, p.in[2].spec};
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    Expected kept[] = {Expected(i == 3 ? in[3].spec : Spec()), Expected(i == 4 ? in[4].spec : Spec())};
    chunk_attention_reference(kept, in, p.as<ChunkAttention::Args>());
    in[i].v = kept[i - 3].value;
  };
  b.reference = with_args<ChunkAttention::Args>(chunk_attention_backward_reference);
  b.reduction = [](const Problem& p) {
    const Spec& q = p.in[0].spec;
    return p.in[1].spec[1] + q[1] * 2 + q.size() / std::max<std::int64_t>(q[0] * q[1], 1);
  };
  b.flops = chunk_attention_flops(5);
  return {c, b};
}

/// What the first of two ranks computes; T: tokens of a chunk.
inline void chunk_attention_cases(auto& to) {
  to.add("chunk_attention", "BxHxTxD", {"q (2B)T(HD)", "k B(4T)(HD)", "v B(4T)(HD)"}, {{1, 16, 2048, 128}},
         [](const auto& v) {
           return chunk_attention(v[0], v[1], v[2], {.heads = static_cast<int>(v.dim('H')), .second = 3 * v.dim('T')});
         })
      .nearest_supported = [](Shape s) {
    s[3] = std::min<std::int64_t>(s[3], Attention::kMaxHeadDim);
    return s;
  };
}

}  // namespace hpcdl::contract
