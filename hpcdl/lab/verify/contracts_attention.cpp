// Attention and rotary position embedding with their gradients.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify::detail {
namespace {

/// Operands of one call, and the weights of one query.
struct Heads {
  const Values &q, &k, &v;
  std::int64_t batch, queries, keys, heads, kv, depth;
  bool causal;
  double scale;

  Heads(const std::vector<Values>& in, const Problem& p) : q(in[0]), k(in[1]), v(in[2]) {
    const auto a = p.as<hpcdl_attention_args>();
    batch = q.dim(0), queries = q.dim(1), keys = k.dim(1), heads = a.heads, kv = a.kv_heads, depth = q.dim(2) / heads;
    causal = a.causal, scale = static_cast<double>(a.scale);
  }
  std::int64_t q_at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return ((b * queries + t) * heads + h) * depth;
  }
  std::int64_t k_at(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return ((b * keys + j) * kv + h * kv / heads) * depth;
  }
  std::int64_t seen(std::int64_t t) const { return causal ? t + keys - queries + 1 : keys; }
  /// Scores of one query; *size: the largest sum of magnitudes behind one of them.
  std::vector<double> scores(std::int64_t b, std::int64_t t, std::int64_t h, double* size) const {
    std::vector<double> s(static_cast<std::size_t>(seen(t)));
    for (std::size_t j = 0; j < s.size(); ++j) {
      double magnitude = 0;
      for (std::int64_t i = 0; i < depth; ++i) {
        const double x = scale * q[q_at(b, t, h) + i] * k[k_at(b, static_cast<std::int64_t>(j), h) + i];
        s[j] += x, magnitude += std::fabs(x);
      }
      *size = std::max(*size, magnitude);
    }
    return s;
  }
  /// log(sum(exp(scores)))
  static double log_sum_exp(const std::vector<double>& s) {
    double top = -INFINITY, sum = 0;
    for (double x : s) top = std::isnan(x) || std::isnan(top) ? NAN : std::max(top, x);
    for (double x : s) sum += std::exp(x - top);
    return top + std::log(sum);
  }
};

/// Variants: causal, causal with grouped heads, all keys.
Problem attention_problem(const Dims& d, DType t, int variant) {
  Problem p;
  const std::int64_t depth = d[3], heads = variant == 1 ? 4 : 2, kv = variant == 1 ? 2 : heads,
                     queries = variant == 2 ? d[1] : std::min(d[1], d[2]);
  const Spec q{{d[0], queries, heads * depth}, t}, k{{d[0], d[2], kv * depth}, t};
  p.in = {{q}, {k}, {k}}, p.out = {q};
  p.set_args(hpcdl_attention_args{static_cast<std::int32_t>(heads), static_cast<std::int32_t>(kv), variant != 2,
                                  static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))});
  return p;
}

void attention_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const Heads a(in, p);
  for (std::int64_t b = 0; b < a.batch; ++b)
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t t = 0; t < a.queries; ++t) {
        double size = 0;
        auto w = a.scores(b, t, h, &size);
        const double lse = Heads::log_sum_exp(w);
        for (double& x : w) x = std::exp(x - lse);
        for (std::int64_t i = 0; i < a.depth; ++i) {
          double y = 0, magnitude = 0;
          for (std::size_t j = 0; j < w.size(); ++j) {
            const double term = w[j] * a.v[a.k_at(b, static_cast<std::int64_t>(j), h) + i];
            y += term, magnitude += std::fabs(term);
          }
          // Weights may be rounded to the storage type before they meet v.
          out[0].set(a.q_at(b, t, h) + i, y, magnitude * (1 + 2 * size), magnitude);
        }
      }
}

void attention_backward_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const Heads a(in, p);
  const Values &y = in[3], &lse = in[4], &dy = in[5];
  struct Sums {
    std::vector<double> value, scale, stored;
    explicit Sums(std::int64_t n) : value(static_cast<std::size_t>(n)), scale(value), stored(value) {}
    void add(std::int64_t i, double x, double noise, double rounded) {
      const auto at = static_cast<std::size_t>(i);
      value[at] += x, scale[at] += noise, stored[at] += rounded;
    }
  } dq(a.q.size()), dk(a.k.size()), dv(a.v.size());
  for (std::int64_t b = 0; b < a.batch; ++b)
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t t = 0; t < a.queries; ++t) {
        double size = 0, d = 0, d_abs = 0;
        const auto s = a.scores(b, t, h, &size);
        const auto qt = a.q_at(b, t, h);
        const double l = lse[(b * a.heads + h) * a.queries + t], noise = 1 + size + std::fabs(l);
        for (std::int64_t i = 0; i < a.depth; ++i)
          d += dy[qt + i] * y[qt + i], d_abs += std::fabs(dy[qt + i] * y[qt + i]);
        for (std::size_t j = 0; j < s.size(); ++j) {
          const auto kj = a.k_at(b, static_cast<std::int64_t>(j), h);
          double dp = 0, dp_abs = 0;
          for (std::int64_t i = 0; i < a.depth; ++i)
            dp += dy[qt + i] * a.v[kj + i], dp_abs += std::fabs(dy[qt + i] * a.v[kj + i]);
          const double w = std::exp(s[j] - l), ds = a.scale * w * (dp - d), ds_abs = a.scale * w * (dp_abs + d_abs);
          for (std::int64_t i = 0; i < a.depth; ++i) {
            const double k_abs = std::fabs(a.k[kj + i]), q_abs = std::fabs(a.q[qt + i]),
                         w_abs = w * std::fabs(dy[qt + i]);
            dq.add(qt + i, ds * a.k[kj + i], ds_abs * noise * k_abs, ds_abs * k_abs);
            dk.add(kj + i, ds * a.q[qt + i], ds_abs * noise * q_abs, ds_abs * q_abs);
            dv.add(kj + i, w * dy[qt + i], w_abs * noise, w_abs);
          }
        }
      }
  const Sums* all[] = {&dq, &dk, &dv};
  for (std::size_t o = 0; o < 3; ++o)
    out[o].value = all[o]->value, out[o].scale = all[o]->scale, out[o].stored = all[o]->stored;
}

void derive_attention(std::vector<Values>& in, std::size_t i, const Problem& p) {
  const Heads a(in, p);
  std::vector<Expected> y(1);
  y[0].spec = in[3].spec;
  if (i == 3) {
    y[0].value = y[0].scale = y[0].stored = in[3].v;
    attention_reference(y, in, p);
    in[3].v = y[0].value;
    return;
  }
  for (std::int64_t b = 0; b < a.batch; ++b)
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t t = 0; t < a.queries; ++t) {
        double size = 0;
        in[4][(b * a.heads + h) * a.queries + t] = Heads::log_sum_exp(a.scores(b, t, h, &size));
      }
}

Cost attention_cost(const Problem& p, double products) {
  const Spec &q = p.in[0].spec, &k = p.in[1].spec;
  const auto a = p.as<hpcdl_attention_args>();
  const double all = static_cast<double>(q.size()) * static_cast<double>(k[1]);
  return {2 * products * all * (a.causal ? 0.5 : 1), traffic(p)};
}

void add_attention_itself(std::vector<Contract>& list) {
  Contract c;
  c.name = "attention";
  c.formula =
      "out = softmax(scale q k^T) v per head; q (B, T, H D), k and v (B, S, Hkv D); head h reads h Hkv / H; causal: "
      "query t sees keys 0 .. t + S - T";
  c.inputs = {"q", "k", "v"}, c.outputs = {"out"};
  c.dims = {{"batch", 1, 2}, {"queries", 1, 40}, {"keys", 1, 70}, {"depth", 1, 70}};
  c.shapes = {{1, 8, 8, 16},   {1, 1, 1, 1},   {1, 1, 1, 8},    {2, 3, 3, 5},    {1, 7, 7, 13},
              {1, 1, 17, 32},  {2, 5, 16, 20}, {1, 15, 31, 8},  {1, 16, 33, 33}, {1, 31, 65, 7},
              {1, 1, 150, 64}, {0, 4, 4, 8},   {1, 33, 33, 64}, {1, 65, 67, 16}, {1, 70, 133, 24}};
  c.typical = {1, 19, 37, 24};
  c.timed = {1, 256, 256, 64};
  c.variants = 3;
  c.problem = attention_problem;
  c.reference = attention_reference;
  c.reduction = [](const Problem& p) { return p.in[1].spec[1] + p.in[0].spec[2] / p.as<hpcdl_attention_args>().heads; };
  c.cost = [](const Problem& p) { return attention_cost(p, 2); };
  c.patterns = {Pattern::positive, Pattern::huge,     Pattern::tiny, Pattern::denormal,
                Pattern::offset,   Pattern::constant, Pattern::zero, Pattern::nan};
  c.huge = 30;
  c.special_input = 0;
  list.push_back(c);

  c.name = "attention_backward";
  c.formula =
      "gradients of attention from out and lse = log(sum(exp(scale q k^T))) (B, H, T): ds = p (dout v^T - sum(dout "
      "out)), dq = scale ds k, dk = scale ds^T q, dv = p^T dout";
  c.inputs = {"q", "k", "v", "out", "lse", "dout"}, c.outputs = {"dq", "dk", "dv"};
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = attention_problem(d, t, v);
    const Spec q = p.in[0].spec;
    p.in.insert(
        p.in.end(),
        {{q, Role::derived}, {{{q[0], p.as<hpcdl_attention_args>().heads, q[1]}, DType::f32}, Role::derived}, {q}});
    p.out = {q, p.in[1].spec, p.in[2].spec};
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    derive_attention(in, i, p);
  };
  c.reference = attention_backward_reference;
  c.reduction = [](const Problem& p) { return p.in[1].spec[1] + p.in[0].spec[1] * 2 + p.in[0].spec[2]; };
  c.cost = [](const Problem& p) { return attention_cost(p, 5); };
  // A score of 1e8 is off by tens, and so is its exponent: with a kept lse, nothing brings it back.
  c.patterns = {Pattern::positive, Pattern::tiny, Pattern::constant, Pattern::zero};
  list.push_back(c);
}

/// dims: batch, tokens, half a head. Two heads.
Problem rope_problem(const Dims& d, DType t, bool backward) {
  Problem p;
  const auto depth = 2 * d[2];
  const Input x{{{d[0], d[1], 2 * depth}, t}}, table{{{d[1] + 3, depth}, DType::f32}, Role::derived};
  p.in = backward ? std::vector<Input>{table, x} : std::vector<Input>{x, table};
  p.out = {x.spec};
  p.set_args(hpcdl_rope_args{depth});
  return p;
}

void rope_reference(std::vector<Expected>& out, const Values& x, const Values& table, double sign) {
  const auto depth = table.dim(1), half = depth / 2, width = x.dim(2), tokens = x.dim(1);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto t = i / width % tokens, k = i % depth;
    const double c = table[t * depth + k % half], s = sign * table[t * depth + half + k % half];
    const double a = x[i] * c, b = k < half ? -x[i + half] * s : x[i - half] * s;
    out[0].set(i, a + b, std::fabs(a) + std::fabs(b));
  }
}

void add_rope(std::vector<Contract>& list) {
  Contract c;
  c.name = "rope";
  c.formula =
      "(x[i], x[i + D/2]) of every head rotated by the angle whose cosine and sine are in row t of table (P, D): D/2 "
      "cosines, then D/2 sines";
  c.inputs = {"x", "table"}, c.outputs = {"y"};
  c.dims = {{"batch", 1, 2}, {"tokens", 1, 40}, {"half", 1, 70}};
  c.shapes = {{1, 4, 16},  {1, 1, 1},  {2, 3, 1},  {1, 7, 3}, {2, 5, 8},  {1, 2, 15},
              {1, 13, 16}, {1, 3, 17}, {2, 2, 33}, {0, 4, 4}, {1, 33, 64}};
  c.typical = {2, 5, 19};
  c.timed = {1, 1024, 256};
  c.problem = [](const Dims& d, DType t, int) { return rope_problem(d, t, false); };
  c.derive = [](std::vector<Values>& in, std::size_t i, const Problem&, const std::function<double(std::int64_t)>&) {
    const auto depth = in[i].dim(1), half = depth / 2;
    for (std::int64_t k = 0; k < in[i].size(); ++k) {
      const double angle = static_cast<double>(k / depth) *
                           std::pow(10000.0, -2.0 * static_cast<double>(k % half) / static_cast<double>(depth));
      in[i][k] = k % depth < half ? std::cos(angle) : std::sin(angle);
    }
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    rope_reference(out, in[0], in[1], 1);
  };
  c.reduction = [](const Problem&) { return std::int64_t{2}; };
  c.cost = [](const Problem& p) { return Cost{3.0 * static_cast<double>(p.out[0].size()), traffic(p)}; };
  c.patterns = all_patterns();
  list.push_back(c);

  c.name = "rope_backward";
  c.formula = "the inverse rotation of dy";
  c.inputs = {"table", "dy"}, c.outputs = {"dx"};
  c.problem = [](const Dims& d, DType t, int) { return rope_problem(d, t, true); };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    rope_reference(out, in[1], in[0], -1);
  };
  list.push_back(c);
}

}  // namespace

void add_attention(std::vector<Contract>& list) {
  add_attention_itself(list);
  add_rope(list);
}

}  // namespace hpcdl::lab::verify::detail
