#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/linear/linear.spec.h"
#include "hpcdl/ops/mlp/mlp.h"

namespace hpcdl::contract {

/// y, z, h. Values between the layers may be rounded to the type of x before and after the activation.
inline void mlp_reference(Outputs out, Inputs in, const Mlp::Args& a) {
  const Affine first{in[0], in[1], in[2], a.conv1d};
  const auto f = first.n, n = in[3].dim(a.conv1d ? 1 : 0);
  std::vector<double> h(static_cast<std::size_t>(f)), noise(h), rounded(h);
  for (std::int64_t i = 0; i < first.rows; ++i) {
    for (std::int64_t j = 0; j < f; ++j) {
      const Sum z = first(i, j);
      const auto at = static_cast<std::size_t>(j);
      h[at] = activated(a.activation, z.value), noise[at] = 2 * z.scale,
      rounded[at] = std::fabs(h[at]) + 2 * std::fabs(z.value);
      z.put(out[1], i * f + j), out[2].set(i * f + j, h[at], noise[at], rounded[at]);
    }
    for (std::int64_t o = 0; o < n; ++o) {
      Sum y;
      double between = 0, stored = 0;
      if (in[4]) y.add(in[4][o]);
      if (in[5]) y.add(in[5][i * n + o]);
      for (std::int64_t j = 0; j < f; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double w = in[3][a.conv1d ? j * n + o : o * f + j];
        y.add(h[at] * w);
        between += noise[at] * std::fabs(w), stored += rounded[at] * std::fabs(w);
      }
      out[0].set(i * n + o, y.value, y.scale + between, std::fabs(y.value) + stored);
    }
  }
}

/// An element of a gradient that takes two products.
struct Chained {
  double value = 0, scale = 0, stored = 0;
  /// Adds factor times an element between the products.
  void add(const Chained& of, double factor) {
    value += of.value * factor, scale += of.scale * std::fabs(factor), stored += of.stored * std::fabs(factor);
  }
  void put(Expected& e, std::int64_t i) const { e.set(i, value, scale, std::fabs(value) + stored); }
};

inline void mlp_backward_reference(Outputs out, Inputs in, const Mlp::Args& a) {
  const Values &x = in[0], &w1 = in[1], &w2 = in[2], &z = in[3], &h = in[4], &dy = in[5], none{};
  const Affine first{x, w1, none, a.conv1d}, second{h, w2, none, a.conv1d};
  const auto m = first.rows, c = first.k, f = first.n, n = second.n;
  std::vector<Chained> dz(static_cast<std::size_t>(m * f));
  const auto at = [&](std::int64_t i, std::int64_t j) -> Chained& { return dz[static_cast<std::size_t>(i * f + j)]; };
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < f; ++j) {
      Sum dh;
      for (std::int64_t o = 0; o < n; ++o) dh.add(dy[i * n + o] * w2[second.at(o, j)]);
      const double s = slope(a.activation, z[i * f + j]), value = s * dh.value;
      at(i, j) = {value, 2 * (1 + std::fabs(s)) * dh.scale, 2 * std::fabs(value)};  // dh and dz may be rounded
    }
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t k = 0; k < c; ++k) {
      Chained sum;
      for (std::int64_t j = 0; j < f; ++j) sum.add(at(i, j), w1[first.at(j, k)]);
      sum.put(out[0], i * c + k);
    }
  for (std::int64_t j = 0; j < f; ++j) {
    Chained bias;
    for (std::int64_t i = 0; i < m; ++i) bias.add(at(i, j), 1);
    bias.put(out[2], j);
    for (std::int64_t k = 0; k < c; ++k) {
      Chained sum;
      for (std::int64_t i = 0; i < m; ++i) sum.add(at(i, j), x[i * c + k]);
      sum.put(out[1], first.at(j, k));
    }
  }
  // The gradients of the second layer's parameters are those of a linear layer.
  Expected second_out[] = {Expected(), out[3], out[4], out[5]};
  const Values second_in[] = {h, w2, dy};
  linear_backward_reference(second_out, second_in, Mlp::second(a));
  for (std::size_t o = 3; o < 6; ++o) out[o] = second_out[o - 2];
}

/// x (M, C), W1 (F, C), W2 (N, F), or transposed with conv1d. Variants: gelu with biases and residual; relu without
/// them, weights transposed; gelu by erf with biases.
inline Problem mlp_problem(const Dims& d, DType t, int v, bool backward) {
  const std::int64_t m = d[0], f = d[1], c = d[2], n = d[3];
  const bool conv1d = v == 1;
  const Spec x{{m, c}, t}, z{{m, f}, t}, y{{m, n}, t}, w1{conv1d ? Shape{c, f} : Shape{f, c}, t},
      w2{conv1d ? Shape{f, n} : Shape{n, f}, t};
  const auto weight = [](const Spec& s, bool there = true) { return there ? Input{s, Role::weight} : Input{}; };
  Problem p;
  if (backward) {
    p.in = {{x}, weight(w1), weight(w2), weight(z), {z, Role::derived}, {y}};
    p.out = {x, w1, {{f}, t}, w2, {{n}, t}, {}};
  } else {
    p.in = {
        {x}, weight(w1), weight({{f}, t}, v != 1), weight(w2), weight({{n}, t}, v != 1), v == 0 ? Input{y} : Input{}};
    p.out = {y};
  }
  const Mlp::Args a{.activation = v == 1   ? Activation::relu
                                  : v == 2 ? Activation::gelu_erf
                                           : Activation::gelu_tanh,
                    .conv1d = conv1d};
  p.set_args(hpcdl_linear_args{static_cast<std::int32_t>(a.activation), conv1d}, a);
  return p;
}

/// For products with the weights at `w1` and `w2`.
inline auto mlp_flops(double n, std::size_t w1, std::size_t w2) {
  return [=](const Problem& p) {
    return n * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[w1].spec.size() + p.in[w2].spec.size());
  };
}

inline Contracts mlp_contracts() {
  auto c = of<Mlp>("mlp",
                   "y = act(x W1^T + b1) W2^T + b2 + residual; W1 (F, C), W2 (N, F), or transposed with conv1d; biases "
                   "and residual are optional",
                   {"x", "w1", "b1", "w2", "b2", "residual"}, {"y"});
  c.needs_aux = true;
  c.dims = {{"M", 1, 30}, {"F", 1, 90}, {"C", 1, 60}, {"N", 1, 60}};
  c.shapes = {{8, 32, 16, 16},  {1, 1, 1, 1}, {1, 7, 3, 2},    {3, 5, 17, 8},    {2, 2, 2, 5},      {7, 33, 8, 9},
              {16, 64, 15, 33}, {0, 8, 4, 4}, {17, 31, 65, 7}, {5, 100, 24, 24}, {33, 130, 40, 31}, {40, 96, 48, 48}};
  c.typical = {9, 35, 21, 19};
  c.rows = "M";
  c.row_shapes = {{1, 35, 21, 19}, {1, 150, 130, 140}};
  c.timed = {256, 1024, 256, 256};
  c.variants = 3;
  c.problem = [](const Dims& d, DType t, int v) { return mlp_problem(d, t, v, false); };
  c.reference = with_args<Mlp::Args>(mlp_reference);
  c.reduction = [](const Problem& p) {
    const Spec& w2 = p.in[3].spec;
    return std::max(p.in[0].spec[-1], w2[p.as<Mlp::Args>().conv1d ? 0 : 1]) + 2;
  };
  c.flops = mlp_flops(2, 1, 3);
  c.patterns = tame_patterns();

  auto b = backward_of(
      c, "mlp_backward",
      "dz = act'(z) (dy W2), dx = dz W1, dw1 = dz^T x, db1 = sum of dz, dw2 = dy^T h, db2 = sum of dy; z and h = "
      "act(z) are the values between the layers; the sixth output is absent",
      {"x", "w1", "w2", "z", "h", "dy"}, {"dx", "dw1", "db1", "dw2", "db2", "dresidual"});
  b.problem = [](const Dims& d, DType t, int v) { return mlp_problem(d, t, v, true); };
  b.derive = [](std::vector<Values>& in, std::size_t, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t i = 0; i < in[3].size(); ++i) in[4][i] = activated(p.as<Mlp::Args>().activation, in[3][i]);
  };
  b.reference = with_args<Mlp::Args>(mlp_backward_reference);
  b.reduction = [](const Problem& p) {
    const Spec &x = p.in[0].spec, &z = p.in[3].spec, &dy = p.in[5].spec;
    return std::max({x.size() / std::max<std::int64_t>(x[-1], 1), z[-1], dy[-1]});
  };
  b.flops = mlp_flops(4, 1, 2);
  b.special_input = 0;
  return {c, b};
}

inline void mlp_cases(auto& to) {
  to.add("mlp", "TxCxF", {"x TC", "w1 FC", "b1 F", "w2 CF", "b2 C"}, {{1024, 768, 3072}}, [](const auto& v) {
      return mlp(v[0], v[1], v[2], v[3], v[4], v.none(), {});
    }).training_only = true;
}

}  // namespace hpcdl::contract
