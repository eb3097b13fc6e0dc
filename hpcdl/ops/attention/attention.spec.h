#pragma once

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

/// Operands of one call, and the weights of one query.
struct Heads {
  const Values &q, &k, &v;
  std::int64_t batch, queries, keys, heads, kv, depth;
  bool causal;
  double scale, cap;
  std::int64_t window, ahead;

  Heads(Inputs in, const Attention::Args& a)
      : q(in[0]),
        k(in[1]),
        v(in[2]),
        batch(q.dim(0)),
        queries(q.dim(1)),
        keys(k.dim(1)),
        heads(a.heads),
        kv(a.kv_heads > 0 ? a.kv_heads : a.heads),
        depth(q.spec.shape.rank() == 4 ? q.dim(3) : q.dim(2) / heads),
        causal(a.causal),
        scale(a.scale > 0 ? static_cast<double>(a.scale) : 1 / std::sqrt(static_cast<double>(depth))),
        cap(static_cast<double>(a.cap)),
        window(a.window),
        ahead(std::max<std::int64_t>(a.ahead, 0)) {}
  std::int64_t q_at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return ((b * queries + t) * heads + h) * depth;
  }
  std::int64_t k_at(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return ((b * keys + j) * kv + h * kv / heads) * depth;
  }
  std::int64_t lse_at(std::int64_t b, std::int64_t t, std::int64_t h) const { return (b * heads + h) * queries + t; }
  /// The position of a query, counted from the first key.
  std::int64_t position(std::int64_t t) const { return t + keys - queries + ahead; }
  std::int64_t seen(std::int64_t t) const { return causal ? std::min(keys, position(t) + 1) : keys; }
  /// Calls f(b, h, t) for every query of every head.
  template <class F> void each(F f) const {
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t t = 0; t < queries; ++t) f(b, h, t);
  }
  /// Scores of one query, -inf for keys before its window; *size: the largest sum of magnitudes of any of them.
  std::vector<double> scores(std::int64_t b, std::int64_t t, std::int64_t h, double* size) const {
    std::vector<double> s(static_cast<std::size_t>(seen(t)));
    for (std::size_t j = 0; j < s.size(); ++j) {
      s[j] = -INFINITY;
      if (window > 0 && static_cast<std::int64_t>(j) + window <= position(t)) continue;
      Sum dot;
      for (std::int64_t i = 0; i < depth; ++i)
        dot.add(scale * q[q_at(b, t, h) + i] * k[k_at(b, static_cast<std::int64_t>(j), h) + i]);
      s[j] = cap > 0 ? cap * std::tanh(dot.value / cap) : dot.value, *size = std::max(*size, dot.scale);
    }
    return s;
  }
  /// The derivative of a score by its product, which a cap reduces.
  double slope(double score) const { return cap > 0 ? 1 - score / cap * (score / cap) : 1; }
  /// log(sum(exp(scores)))
  static double log_sum_exp(const std::vector<double>& s) {
    double top = -INFINITY, sum = 0;
    for (double x : s) top = std::isnan(x) || std::isnan(top) ? NAN : std::max(top, x);
    for (double x : s) sum += std::exp(x - top);
    return top + std::log(sum);
  }
};

/// The smallest weight whose rounding error in `t` is relative. That of a smaller weight is as large as for this one.
inline double least_normal(DType t) { return t == DType::f16 ? 0x1p-14 : 0; }

/// out, lse
inline void attention_reference(Outputs out, Inputs in, const Attention::Args& args) {
  const Heads a(in, args);
  const double least = least_normal(a.v.spec.dtype);
  a.each([&](auto b, auto h, auto t) {
    double size = 0;
    auto w = a.scores(b, t, h, &size);
    const double lse = Heads::log_sum_exp(w);
    out[1].set(a.lse_at(b, t, h), lse, 1 + size + std::fabs(lse));
    for (double& x : w) x = std::exp(x - lse);
    for (std::int64_t i = 0; i < a.depth; ++i) {
      Sum y;
      double rounded = 0;  // weights may be rounded to the storage type before they are multiplied by v
      for (std::size_t j = 0; j < w.size(); ++j) {
        const double v = a.v[a.k_at(b, static_cast<std::int64_t>(j), h) + i];
        y.add(w[j] * v), rounded += std::max(w[j], least) * std::fabs(v);
      }
      out[0].set(a.q_at(b, t, h) + i, y.value, y.scale * (1 + 2 * size), rounded);
    }
  });
}

inline void attention_backward_reference(Outputs out, Inputs in, const Attention::Args& args) {
  const Heads a(in, args);
  const Values &y = in[3], &lse = in[4], &dy = in[5];
  const double least = least_normal(a.v.spec.dtype);
  const auto add = [](Expected& e, std::int64_t i, double x, double noise, double rounded) {
    const auto at = static_cast<std::size_t>(i);
    e.value[at] += x, e.scale[at] += noise, e.stored[at] += rounded;
  };
  a.each([&](auto b, auto h, auto t) {
    double size = 0;
    const auto s = a.scores(b, t, h, &size);
    const auto qt = a.q_at(b, t, h);
    const double l = lse[a.lse_at(b, t, h)], noise = 1 + size + std::fabs(l);
    Sum d;
    for (std::int64_t i = 0; i < a.depth; ++i) d.add(dy[qt + i] * y[qt + i]);
    for (std::size_t j = 0; j < s.size(); ++j) {
      const auto kj = a.k_at(b, static_cast<std::int64_t>(j), h);
      Sum dp;
      for (std::int64_t i = 0; i < a.depth; ++i) dp.add(dy[qt + i] * a.v[kj + i]);
      if (std::isinf(s[j])) continue;
      const double w = std::exp(s[j] - l), ds = a.scale * w * (dp.value - d.value) * a.slope(s[j]),
                   ds_abs = w * (dp.scale + d.scale), ds_stored = a.scale * std::max(ds_abs, least),
                   w_stored = std::max(w, least);
      for (std::int64_t i = 0; i < a.depth; ++i) {
        const double k = std::fabs(a.k[kj + i]), q = std::fabs(a.q[qt + i]), g = std::fabs(dy[qt + i]);
        add(out[0], qt + i, ds * a.k[kj + i], a.scale * ds_abs * k * noise, ds_stored * k);
        add(out[1], kj + i, ds * a.q[qt + i], a.scale * ds_abs * q * noise, ds_stored * q);
        add(out[2], kj + i, w * dy[qt + i], w * g * noise, w_stored * g);
      }
    }
  });
}

/// Variants: causal, causal with grouped heads, all keys.
inline Problem attention_problem(const Dims& d, DType t, int variant) {
  Problem p;
  const std::int64_t depth = d[3], queries = variant == 2 ? d[1] : std::min(d[1], d[2]);
  const Attention::Args a{.heads = variant == 1 ? 4 : 2,
                          .kv_heads = 2,
                          .causal = variant != 2,
                          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))};
  const Spec q{{d[0], queries, a.heads * depth}, t}, k{{d[0], d[2], a.kv_heads * depth}, t};
  p.in = {{q}, {k}, {k}}, p.out = {q};
  p.set_args(hpcdl_attention_args{a.heads, a.kv_heads, a.causal, a.scale}, a);
  return p;
}

/// The forward pass has two products, the backward pass five.
inline auto attention_flops(double products) {
  return [products](const Problem& p) {
    return 2 * products * static_cast<double>(p.in[0].spec.size()) * static_cast<double>(p.in[1].spec[1]) *
           (p.as<Attention::Args>().causal ? 0.5 : 1);
  };
}

inline Contracts attention_contracts() {
  auto c = of<Attention>(
      "attention",
      "out = softmax(scale q k^T) v per head; q (B, T, H D), k and v (B, S, Hkv D); head h reads h Hkv / H; causal: "
      "query t sees keys 0 .. t + S - T",
      {"q", "k", "v"}, {"out"});
  c.dims = {{"batch", 1, 2}, {"queries", 1, 40}, {"keys", 1, 70}, {"depth", 1, 70}};
  c.shapes = {{1, 8, 8, 16},   {1, 1, 1, 1},   {1, 1, 1, 8},    {2, 3, 3, 5},    {1, 7, 7, 13},
              {1, 1, 17, 32},  {2, 5, 16, 20}, {1, 15, 31, 8},  {1, 16, 33, 33}, {1, 31, 65, 7},
              {1, 1, 150, 64}, {0, 4, 4, 8},   {1, 33, 33, 64}, {1, 65, 67, 16}, {1, 70, 133, 24}};
  c.typical = {1, 19, 37, 24};
  c.rows = "queries";
  c.row_shapes = {{1, 1, 300, 24}, {1, 1, 417, 64}};
  c.row_alone = [](const Dims& many, int variant, std::int64_t row) {  // with the keys that it sees
    return Dims{many[0], 1, variant == 2 ? many[2] : many[2] - many[1] + row + 1, many[3]};
  };
  c.timed = {1, 256, 256, 64};
  c.variants = 3;
  c.problem = attention_problem;
  c.reference = with_args<Attention::Args>(attention_reference);
  c.reduction = [](const Problem& p) {
    const Spec& q = p.in[0].spec;
    return p.in[1].spec[1] + (q.shape.rank() == 4 ? q[3] : q[2] / p.as<Attention::Args>().heads);
  };
  c.flops = attention_flops(2);
  c.patterns = {Pattern::positive, Pattern::huge,     Pattern::tiny, Pattern::denormal,
                Pattern::offset,   Pattern::constant, Pattern::zero, Pattern::nan};
  c.huge = 30;
  c.special_input = 0;

  auto b = backward_of(
      c, "attention_backward",
      "gradients of attention from out and lse = log(sum(exp(scale q k^T))) (B, H, T): ds = p (dout v^T - sum(dout "
      "out)), dq = scale ds k, dk = scale ds^T q, dv = p^T dout",
      {"q", "k", "v", "out", "lse", "dout"}, {"dq", "dk", "dv"});
  b.rows = kNoRows;  // dk and dv are sums over the queries: a call with one query has others
  b.problem = [](const Dims& d, DType t, int v) {
    Problem p = attention_problem(d, t, v);
    const Spec q = p.in[0].spec, lse{{q[0], p.as<Attention::Args>().heads, q[1]}, DType::f32};
    p.in.insert(p.in.end(), {{q, Role::derived}, {lse, Role::derived}, {q}});
    p.out = {q, p.in[1].spec, p.in[2].spec};
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    Expected kept[] = {Expected(i == 3 ? in[3].spec : Spec()), Expected(i == 4 ? in[4].spec : Spec())};
    attention_reference(kept, in, p.as<Attention::Args>());
    in[i].v = kept[i - 3].value;
  };
  b.reference = with_args<Attention::Args>(attention_backward_reference);
  b.reduction = [](const Problem& p) {
    const Spec& q = p.in[0].spec;
    return p.in[1].spec[1] + q[1] * 2 + q.size() / std::max<std::int64_t>(q[0] * q[1], 1);
  };
  b.flops = attention_flops(5);
  // A score of 1e8 has an error of tens, and so has its exponent; with a stored lse the error does not cancel.
  b.patterns = {Pattern::positive, Pattern::tiny, Pattern::constant, Pattern::zero};
  return {c, b};
}

inline void attention_cases(auto& to) {
  const auto widest = [](Shape s) {
    s[3] = std::min<std::int64_t>(s[3], 256);
    return s;
  };
  for (const bool causal : {false, true})  // q, k and v are packed in the output of the projection
    to.add(causal ? "attention+causal" : "attention", "BxHxTxD", {"qkv BT(3HD)"}, {{4, 12, 1024, 64}},
           [causal](const auto& v) {
             const auto width = v.dim('H') * v.dim('D');
             const auto part = [&](std::int64_t i) { return v.graph.slice(v[0], i * width, width); };
             return attention(part(0), part(1), part(2), {.heads = static_cast<int>(v.dim('H')), .causal = causal});
           })
        .nearest_supported = widest;
}

}  // namespace hpcdl::contract
