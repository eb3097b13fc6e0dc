// What stands for several ops in a training step: the MLP, the last layer with its loss, the loss scale.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"
#include "hpcdl/lab/verify/products.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"

namespace hpcdl::lab::verify::detail {
namespace {

std::vector<Pattern> tame() {
  return {Pattern::positive, Pattern::tiny, Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::nan};
}

// ---------------------------------------------------------------- mlp

/// Sizes and layout of one MLP: x (M, C), W1 (F, C), W2 (N, F), or transposed with conv1d.
struct MlpShape {
  std::int64_t m, f, c, n;
  hpcdl_linear_args args;

  Spec w1(DType t) const { return args.conv1d ? Spec{{c, f}, t} : Spec{{f, c}, t}; }
  Spec w2(DType t) const { return args.conv1d ? Spec{{f, n}, t} : Spec{{n, f}, t}; }
  std::int64_t w1_at(std::int64_t j, std::int64_t k) const { return args.conv1d ? k * f + j : j * c + k; }
  std::int64_t w2_at(std::int64_t o, std::int64_t j) const { return args.conv1d ? j * n + o : o * f + j; }
};
/// Variants: gelu with biases and residual; relu without them, weights transposed; gelu by erf with biases.
MlpShape mlp_shape(const Dims& d, int v) {
  return {d[0],
          d[1],
          d[2],
          d[3],
          {v == 1   ? HPCDL_ACT_RELU
           : v == 2 ? HPCDL_ACT_GELU_ERF
                    : HPCDL_ACT_GELU_TANH,
           v == 1}};
}
MlpShape mlp_shape(const Problem& p, std::int64_t m, std::int64_t f, std::int64_t c, std::int64_t n) {
  return {m, f, c, n, p.as<hpcdl_linear_args>()};
}

Problem mlp_problem(const Dims& d, DType t, int v) {
  const auto s = mlp_shape(d, v);
  Problem p;
  p.in = {{{{s.m, s.c}, t}},
          {s.w1(t), Role::weight},
          v == 1 ? Input{} : Input{{{s.f}, t}, Role::weight},
          {s.w2(t), Role::weight},
          v == 1 ? Input{} : Input{{{s.n}, t}, Role::weight},
          v == 0 ? Input{{{s.m, s.n}, t}} : Input{}};
  p.out = {{{s.m, s.n}, t}};
  p.set_args(s.args);
  return p;
}

/// What is between the layers may be rounded to the type of x before and behind the activation.
void mlp_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto n = out[0].spec[1], c = in[0].dim(1);
  const auto s = mlp_shape(p, in[0].dim(0), in[1].size() / c, c, n);
  std::vector<double> h(static_cast<std::size_t>(s.f)), noise(h), rounded(h);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.f; ++j) {
      Sum z;
      if (in[2]) z.add(in[2][j]);
      for (std::int64_t k = 0; k < s.c; ++k) z.add(in[0][i * s.c + k] * in[1][s.w1_at(j, k)]);
      const auto at = static_cast<std::size_t>(j);
      h[at] = activated(s.args.activation, z.value), noise[at] = 2 * z.scale,
      rounded[at] = std::fabs(h[at]) + 2 * std::fabs(z.value);
    }
    for (std::int64_t o = 0; o < n; ++o) {
      Sum y;
      double between = 0, stored = 0;
      if (in[4]) y.add(in[4][o]);
      if (in[5]) y.add(in[5][i * n + o]);
      for (std::int64_t j = 0; j < s.f; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double w = in[3][s.w2_at(o, j)];
        y.add(h[at] * w);
        between += noise[at] * std::fabs(w), stored += rounded[at] * std::fabs(w);
      }
      out[0].set(i * n + o, y.value, y.scale + between, std::fabs(y.value) + stored);
    }
  }
}

Problem mlp_backward_problem(const Dims& d, DType t, int v) {
  const auto s = mlp_shape(d, v);
  Problem p;
  const Spec x{{s.m, s.c}, t}, z{{s.m, s.f}, t};
  p.in = {
      {x}, {s.w1(t), Role::weight}, {s.w2(t), Role::weight}, {z, Role::weight}, {z, Role::derived}, {{{s.m, s.n}, t}}};
  p.out = {x, s.w1(t), {{s.f}, t}, s.w2(t), {{s.n}, t}, {}};
  p.set_args(s.args);
  return p;
}

/// An element of a gradient that is formed in two products.
struct Chained {
  double value = 0, scale = 0, stored = 0;
  /// factor times an element between the products.
  void add(const Chained& of, double factor) {
    value += of.value * factor, scale += of.scale * std::fabs(factor), stored += of.stored * std::fabs(factor);
  }
  void put(Expected& e, std::int64_t i) const { e.set(i, value, scale, std::fabs(value) + stored); }
};

void mlp_backward_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const Values &x = in[0], &w1 = in[1], &w2 = in[2], &z = in[3], &h = in[4], &dy = in[5];
  const auto s = mlp_shape(p, x.dim(0), z.dim(1), x.dim(1), dy.dim(1));
  std::vector<Chained> dz(static_cast<std::size_t>(s.m * s.f));
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.f; ++j) {
      Sum dh;
      for (std::int64_t o = 0; o < s.n; ++o) dh.add(dy[i * s.n + o] * w2[s.w2_at(o, j)]);
      const double a = slope(s.args.activation, z[i * s.f + j]), value = a * dh.value;
      dz[static_cast<std::size_t>(i * s.f + j)] = {value, 2 * (1 + std::fabs(a)) * dh.scale,
                                                   2 * std::fabs(value)};  // dh and dz may be rounded
    }
  const auto at = [&](std::int64_t i, std::int64_t j) -> const Chained& {
    return dz[static_cast<std::size_t>(i * s.f + j)];
  };
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t k = 0; k < s.c; ++k) {
      Chained sum;
      for (std::int64_t j = 0; j < s.f; ++j) sum.add(at(i, j), w1[s.w1_at(j, k)]);
      sum.put(out[0], i * s.c + k);
    }
  for (std::int64_t j = 0; j < s.f; ++j) {
    Chained bias;
    for (std::int64_t i = 0; i < s.m; ++i) bias.add(at(i, j), 1);
    bias.put(out[2], j);
    for (std::int64_t k = 0; k < s.c; ++k) {
      Chained sum;
      for (std::int64_t i = 0; i < s.m; ++i) sum.add(at(i, j), x[i * s.c + k]);
      sum.put(out[1], s.w1_at(j, k));
    }
  }
  for (std::int64_t o = 0; o < s.n; ++o) {
    Sum bias;
    for (std::int64_t i = 0; i < s.m; ++i) bias.add(dy[i * s.n + o]);
    out[4].set(o, bias.value, bias.scale);
    for (std::int64_t j = 0; j < s.f; ++j) {
      Sum sum;
      for (std::int64_t i = 0; i < s.m; ++i) sum.add(dy[i * s.n + o] * h[i * s.f + j]);
      out[3].set(s.w2_at(o, j), sum.value, sum.scale);
    }
  }
}

void add_mlp(std::vector<Contract>& list) {
  Contract c;
  c.name = "mlp";
  c.formula =
      "y = act(x W1^T + b1) W2^T + b2 + residual; W1 (F, C), W2 (N, F), or transposed with conv1d; biases and residual "
      "are optional";
  c.inputs = {"x", "w1", "b1", "w2", "b2", "residual"}, c.outputs = {"y"};
  c.dims = {{"M", 1, 30}, {"F", 1, 90}, {"C", 1, 60}, {"N", 1, 60}};
  c.shapes = {{8, 32, 16, 16},  {1, 1, 1, 1}, {1, 7, 3, 2},    {3, 5, 17, 8},    {2, 2, 2, 5},      {7, 33, 8, 9},
              {16, 64, 15, 33}, {0, 8, 4, 4}, {17, 31, 65, 7}, {5, 100, 24, 24}, {33, 130, 40, 31}, {40, 96, 48, 48}};
  c.typical = {9, 35, 21, 19};
  c.timed = {256, 1024, 256, 256};
  c.variants = 3;
  c.problem = mlp_problem;
  c.reference = mlp_reference;
  c.reduction = [](const Problem& p) {
    return std::max(p.in[0].spec[1], p.in[3].spec.size() / std::max<std::int64_t>(p.out[0][1], 1)) + 2;
  };
  c.cost = [](const Problem& p) {
    return Cost{
        2.0 * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[1].spec.size() + p.in[3].spec.size()),
        traffic(p)};
  };
  c.patterns = tame();
  list.push_back(c);

  c.name = "mlp_backward";
  c.formula =
      "dz = act'(z) (dy W2), dx = dz W1, dw1 = dz^T x, db1 = sum of dz, dw2 = dy^T h, db2 = sum of dy; z and h = "
      "act(z) are the values between the layers; the sixth output is absent";
  c.inputs = {"x", "w1", "w2", "z", "h", "dy"}, c.outputs = {"dx", "dw1", "db1", "dw2", "db2", "dresidual"};
  c.problem = mlp_backward_problem;
  c.derive = [](std::vector<Values>& in, std::size_t, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t i = 0; i < in[3].size(); ++i)
      in[4][i] = activated(p.as<hpcdl_linear_args>().activation, in[3][i]);
  };
  c.reference = mlp_backward_reference;
  c.reduction = [](const Problem& p) { return std::max({p.in[0].spec[0], p.in[3].spec[1], p.in[5].spec[1]}); };
  c.cost = [](const Problem& p) {
    return Cost{
        4.0 * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[1].spec.size() + p.in[2].spec.size()),
        traffic(p)};
  };
  c.special_input = 0;
  list.push_back(c);
}

// ---------------------------------------------------------------- lm_head_loss

Problem lm_head_problem(const Dims& d, DType t) {
  Problem p;
  p.in = {{{{d[0], d[2]}, t}}, {{{d[1], d[2]}, t}, Role::weight}, {{{d[0]}, DType::i32}, Role::index_or_none, d[1]}};
  p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
  return p;
}

/// The logits of one row and their log-sum-exp; `noise`: the magnitudes behind the largest sum.
struct Row {
  std::vector<Sum> logits;
  double top = -std::numeric_limits<double>::infinity(), lse = 0, noise = 0;

  Row(const Values& h, const Values& w, std::int64_t r) : logits(static_cast<std::size_t>(w.dim(0))) {
    const auto c = w.dim(1);
    bool nan = false;
    for (std::int64_t v = 0; v < w.dim(0); ++v) {
      auto& x = logits[static_cast<std::size_t>(v)];
      for (std::int64_t k = 0; k < c; ++k) x.add(h[r * c + k] * w[v * c + k]);
      nan |= std::isnan(x.value), top = std::max(top, x.value), noise = std::max(noise, x.scale);
    }
    double sum = 0;
    for (const auto& x : logits) sum += std::exp(x.value - top);
    lse = nan ? std::numeric_limits<double>::quiet_NaN() : top + std::log(sum);
  }
};

void lm_head_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
  Sum loss;
  double noise = 0, count = 0;
  for (std::int64_t r = 0; r < in[2].size(); ++r) {
    if (in[2][r] < 0) continue;
    const Row row(in[0], in[1], r);
    loss.add(row.lse - row.logits[static_cast<std::size_t>(in[2][r])].value);
    noise += 1 + 2 * row.noise + std::fabs(row.top) + std::log(static_cast<double>(in[1].dim(0))), count += 1;
  }
  out[0].set(0, loss.value, loss.scale + noise);
  out[1].set(0, count, 0);
}

/// The logits' gradient may be rounded to the type of h.
void lm_head_backward_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
  const auto c = in[1].dim(1);
  std::vector<Chained> dh(static_cast<std::size_t>(in[0].size())), dw(static_cast<std::size_t>(in[1].size()));
  for (std::int64_t r = 0; r < in[2].size(); ++r) {
    if (in[2][r] < 0) {  // 0, or 0 times what is no number
      for (std::int64_t v = 0; v < in[1].dim(0); ++v)
        for (std::int64_t k = 0; k < c; ++k)
          if (!std::isfinite(in[0][r * c + k])) dw[static_cast<std::size_t>(v * c + k)].scale = kAny;
      continue;
    }
    const Row row(in[0], in[1], r);
    for (std::int64_t v = 0; v < in[1].dim(0); ++v) {
      const auto& x = row.logits[static_cast<std::size_t>(v)];
      const double p = std::exp(x.value - in[3][r]), hot = in[2][r] == static_cast<double>(v), g = (p - hot) * in[5][0];
      const Chained d{g, std::fabs(in[5][0]) * (p * (1 + x.scale + std::fabs(in[3][r])) + hot), std::fabs(g)};
      for (std::int64_t k = 0; k < c; ++k) {
        dh[static_cast<std::size_t>(r * c + k)].add(d, in[1][v * c + k]);
        dw[static_cast<std::size_t>(v * c + k)].add(d, in[0][r * c + k]);
      }
    }
  }
  for (std::size_t i = 0; i < dh.size(); ++i) dh[i].put(out[0], static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < dw.size(); ++i) dw[i].put(out[1], static_cast<std::int64_t>(i));
}

void add_lm_head(std::vector<Contract>& list) {
  Contract c;
  c.name = "lm_head_loss";
  c.formula =
      "logits = h W^T; loss = sum over rows with target >= 0 of logsumexp(logits) - logits[target]; count = number of "
      "those rows";
  c.inputs = {"h", "weight", "targets"}, c.outputs = {"loss", "count"};
  c.dims = {{"rows", 1, 20}, {"vocabulary", 1, 200}, {"width", 1, 70}};
  c.shapes = {{4, 64, 16}, {1, 1, 1},     {2, 3, 5},    {3, 17, 8},   {5, 31, 33},  {7, 65, 15},
              {0, 16, 8},  {16, 129, 64}, {9, 257, 24}, {2, 3000, 9}, {40, 300, 48}};
  c.typical = {5, 131, 19};
  c.timed = {128, 4096, 256};
  c.problem = [](const Dims& d, DType t, int) { return lm_head_problem(d, t); };
  c.reference = lm_head_reference;
  c.reduction = [](const Problem& p) { return p.in[0].spec[0] + p.in[1].spec[0] + p.in[1].spec[1]; };
  c.cost = [](const Problem& p) {
    return Cost{2.0 * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[1].spec.size()), traffic(p)};
  };
  c.patterns = tame();
  list.push_back(c);

  c.name = "lm_head_loss_backward";
  c.formula =
      "g = (exp(h W^T - lse) - onehot(target)) dloss, 0 where target < 0; dh = g W, dweight = g^T h; lse = logsumexp(h "
      "W^T); the fifth input is absent";
  c.inputs = {"h", "weight", "targets", "lse", "logits", "dloss"}, c.outputs = {"dh", "dweight"};
  c.problem = [](const Dims& d, DType t, int) {
    Problem p = lm_head_problem(d, t);
    p.in.push_back({{{d[0]}, DType::f32}, Role::derived});
    p.in.push_back({});
    p.in.push_back({{{1}, DType::f32}, Role::weight});
    p.out = {p.in[0].spec, p.in[1].spec};
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t, const Problem&, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[3].size(); ++r) in[3][r] = Row(in[0], in[1], r).lse;
  };
  c.reference = lm_head_backward_reference;
  c.cost = [](const Problem& p) {
    return Cost{6.0 * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[1].spec.size()), traffic(p)};
  };
  list.push_back(c);
}

// ---------------------------------------------------------------- loss_scale

void loss_scale_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto a = p.as<hpcdl_loss_scale_args>();
  const double before = in[0][0], least = static_cast<double>(a.least);
  double good = in[1][0], skipped = in[1][1], stuck = in[1][2], scale = before;
  out[0].set(0, static_cast<double>(a.grad_scale) / before, 0);
  out[1].set(0, static_cast<double>(a.step) - skipped, 0);
  if (a.skip) {
    good = 0, skipped += 1, stuck = before <= least ? stuck + 1 : 0;
    scale = std::max(before * static_cast<double>(a.backoff), least);
  } else {
    stuck = 0, good += 1;
    if (good >= a.interval)
      good = 0, scale = std::min(before * static_cast<double>(a.growth), static_cast<double>(a.most));
  }
  out[2].set(0, scale, 0);
  const double counts[] = {good, skipped, stuck};
  for (int i = 0; i < 3; ++i) out[3].set(i, counts[i], 0);
}

/// Variants: a good step; one that overflowed; that at a scale below the least.
void add_loss_scale(std::vector<Contract>& list) {
  Contract c;
  c.name = "loss_scale";
  c.formula =
      "grad_scale /= scale, step -= counts[1]; then, with skip: scale = max(scale backoff, least), counts = (0, +1, +1 "
      "where scale <= least, else 0); "
      "without: counts[2] = 0 and, where ++counts[0] = interval, counts[0] = 0 and scale = min(scale growth, most)";
  c.inputs = {"scale", "counts"}, c.outputs = {"grad_scale", "step", "scale", "counts"};
  c.dims = {{"interval", 1, 12}};
  c.shapes = {{4}, {1}, {2}, {3}, {5}, {6}, {8}, {11}};
  c.typical = {3};
  c.timed = {4};
  c.variants = 3;
  c.problem = [](const Dims& d, DType, int v) {
    Problem p;
    p.in = {{LossScale::kScale, Role::positive}, {LossScale::kCounts, Role::index, d[0]}};
    p.out = {{{1}, DType::f32}, {{1}, DType::i32}, LossScale::kScale, LossScale::kCounts};
    p.set_args(
        hpcdl_loss_scale_args{2, 0.5f, v == 2 ? 1.5f : 0.25f, 2, 0.5f, static_cast<std::int32_t>(d[0]), v > 0, 100});
    return p;
  };
  c.reference = loss_scale_reference;
  c.reduction = [](const Problem&) { return std::int64_t{1}; };
  c.cost = [](const Problem& p) { return Cost{1, traffic(p)}; };
  list.push_back(c);
}

}  // namespace

void add_training(std::vector<Contract>& list) {
  add_mlp(list);
  add_lm_head(list);
  add_loss_scale(list);
}

}  // namespace hpcdl::lab::verify::detail
