#pragma once

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/matmul.spec.h"

namespace hpcdl::contract {

/// x (..., K) W^T + bias, element by element: z(r, j).
struct Affine {
  const Values &x, &w, &bias;
  bool conv1d;  // W (K, N), not (N, K)
  std::int64_t k = x.dim(-1), n = w.dim(conv1d ? 1 : 0), rows = k ? x.size() / k : 0;

  std::int64_t at(std::int64_t j, std::int64_t i) const { return conv1d ? i * n + j : j * k + i; }
  Sum operator()(std::int64_t r, std::int64_t j) const {
    Sum z;
    if (bias) z.add(bias[j]);
    for (std::int64_t i = 0; i < k; ++i) z.add(x[r * k + i] * w[at(j, i)]);
    return z;
  }
};

/// y, and z = x W^T + bias if the op keeps it.
inline void linear_reference(Outputs out, Inputs in, const LinearArgs& a) {
  const Affine z{in[0], in[1], in[2], a.conv1d};
  for (std::int64_t r = 0; r < z.rows; ++r)
    for (std::int64_t j = 0; j < z.n; ++j) {
      const auto at = r * z.n + j;
      const Sum sum = z(r, j);
      const double residual = in[3] ? in[3][at] : 0;
      const bool open = a.activation > Activation::relu && std::isinf(sum.value);
      out[0].set(at, activated(a.activation, sum.value) + residual, open ? kAny : 2 * sum.scale + std::fabs(residual));
      if (out.size() > 1) sum.put(out[1], at);
    }
}

/// dx, dweight, dbias, dresidual of an op without activation.
inline void linear_backward_reference(Outputs out, Inputs in, const LinearArgs& a) {
  const Values &x = in[0], &w = in[1], &dy = in[2], none{};
  const Affine z{x, w, none, a.conv1d};
  for (std::int64_t r = 0; r < z.rows; ++r)
    for (std::int64_t i = 0; i < z.k; ++i) {
      Sum s;
      for (std::int64_t j = 0; j < z.n; ++j) s.add(dy[r * z.n + j] * w[z.at(j, i)]);
      s.put(out[0], r * z.k + i);
    }
  for (std::int64_t j = 0; j < z.n; ++j) {
    for (std::int64_t i = 0; i < z.k; ++i) {
      Sum s;
      for (std::int64_t r = 0; r < z.rows; ++r) s.add(dy[r * z.n + j] * x[r * z.k + i]);
      s.put(out[1], z.at(j, i));
    }
    for (std::int64_t r = 0; r < z.rows; ++r)
      out[2].add(j, dy[r * z.n + j]), out[3].set(r * z.n + j, dy[r * z.n + j], 0);
  }
}

/// Variants: bias; W (K, N) and no bias; gelu in both forms, bias and residual.
inline Problem linear_problem(const Dims& d, DType t, int v) {
  Problem p;
  const auto m = d[0], n = d[1], k = d[2];
  p.in = {{{{m, k}, t}},
          {v == 1 ? Spec{{k, n}, t} : Spec{{n, k}, t}},
          v == 1 ? Input{} : Input{{{n}, t}, Role::weight},
          v >= 2 ? Input{{{m, n}, t}} : Input{}};
  p.out = {{{m, n}, t}};
  const LinearArgs a{.activation = v == 2   ? Activation::gelu_tanh
                                   : v == 3 ? Activation::gelu_erf
                                            : Activation::none,
                     .conv1d = v == 1};
  p.set_args(hpcdl_linear_args{static_cast<std::int32_t>(a.activation), a.conv1d}, a);
  return p;
}

inline void set_linear(Contract& c) {
  set_product_sizes(c);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1] + 2; };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[-1]);
  };
}

inline Contracts linear_contracts() {
  auto c = of<Linear>(
      "linear", "y = act(x W^T + bias) + residual; W (N, K), or (K, N) with conv1d; bias and residual are optional",
      {"x", "weight", "bias", "residual"}, {"y"});
  set_linear(c);
  c.op_for = [](const void* args) {
    const bool plain = static_cast<const LinearArgs*>(args)->activation == Activation::none;
    return plain ? &op_info<Linear> : &op_info<ActivatedLinear>;
  };
  c.variants = 4;  // huge values are limited: gelu cubes them
  c.problem = linear_problem;
  c.reference = with_args<LinearArgs>(linear_reference);

  auto b =
      backward_of(c, "linear_backward",
                  "dx = dy W, dweight = dy^T x, dbias = sum of dy over the rows; W (N, K); the fourth output is absent",
                  {"x", "weight", "dy"}, {"dx", "dweight", "dbias", "dresidual"});
  b.op_for = nullptr;
  b.huge = 1e16, b.variants = 1;
  b.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}}, {{{d[1], d[2]}, t}}, {{{d[0], d[1]}, t}}};
    p.out = {p.in[0].spec, p.in[1].spec, {{d[1]}, t}, {}};
    p.set_args(hpcdl_linear_args{HPCDL_ACT_NONE, 0}, LinearArgs{});
    return p;
  };
  b.reference = with_args<LinearArgs>(linear_backward_reference);
  b.reduction = [](const Problem& p) {
    const Spec &x = p.in[0].spec, &w = p.in[1].spec;
    return std::max({x.size() / std::max<std::int64_t>(x[-1], 1), w[0], w[1]});
  };
  b.flops = [](const Problem& p) {
    return 4.0 * static_cast<double>(p.in[2].spec.size()) * static_cast<double>(p.in[0].spec[-1]);
  };
  return {c, b};
}

/// The building block of the smallest networks, in one call.
inline Contracts matmul_add_relu_contracts() {
  auto c = of<ActivatedLinear>("matmul_add_relu", "y = relu(a b + bias); a (M, K), b (K, N), bias (N)",
                               {"a", "b", "bias"}, {"y"}, {.activation = Activation::relu, .conv1d = true});
  set_linear(c);
  c.huge = 1e16;
  c.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}}, {{{d[2], d[1]}, t}}, {{{d[1]}, t}, Role::weight}};
    p.out = {{{d[0], d[1]}, t}};
    return p;
  };
  c.reference = [](Outputs out, Inputs in, const void* args) {
    const Values all[] = {in[0], in[1], in[2], {}};
    linear_reference(out, all, *static_cast<const LinearArgs*>(args));
  };
  return {c};
}

inline void linear_cases(auto& to) {
  const auto affine = [&](const char* op, Activation act, std::vector<std::string> operands, Shape shape) -> auto& {
    operands.insert(operands.begin(), {"x MK", "w NK"});
    return to.add(op, "MxNxK", std::move(operands), {shape},
                  [act](const auto& v) { return linear(v[0], v[1], v["bias"], {.activation = act}, v["residual"]); });
  };
  const Shape expand{1024, 3072, 768}, reduce{1024, 768, 3072}, head{256, 50304, 768};
  affine("linear", Activation::none, {}, expand).forward_shapes = {head};
  affine("linear+bias", Activation::none, {"bias N"}, expand);
  affine("linear+bias_relu", Activation::relu, {"bias N"}, expand);
  affine("linear+bias_gelu", Activation::gelu_tanh, {"bias N"}, expand);
  affine("linear+bias_residual", Activation::none, {"bias N", "residual MN"}, reduce);
}

}  // namespace hpcdl::contract
