// Element-wise functions and their gradients.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify::detail {
namespace {

constexpr double kTiny = 0x1p-100;  // what a function of exp may lose of an operand it is multiplied with

double gelu(double x, bool erf) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return erf ? 0.5 * x * (1 + std::erf(x * M_SQRT1_2)) : 0.5 * x * (1 + std::tanh(u));
}
double gelu_slope(double x, bool erf) {
  if (erf) return 0.5 * (1 + std::erf(x * M_SQRT1_2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
  const double du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + (std::fabs(t) < 1 ? 0.5 * x * (1 - t * t) * du : 0);
}
/// Magnitudes within the slope's formula: x (1 - t^2) u' cancels in 1 - t^2 and grows with x^3 until that is 0.
double gelu_slope_scale(double x) { return 1 + std::fabs(x) * std::min(1 + x * x, 40.0); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// `n` operands (rows, cols) of one dtype, one result like them.
Problem alike(const Dims& d, DType t, int n) {
  Problem p;
  const Spec s{{d[0], d[1]}, t};
  for (int i = 0; i < n; ++i) p.in.push_back({s});
  p.out = {s};
  return p;
}
Problem alike_gelu(const Dims& d, DType t, int n, int variant) {
  Problem p = alike(d, t, n);
  p.set_args(hpcdl_gelu_args{variant});
  return p;
}

Contract base(std::string_view name, std::string_view formula, std::vector<std::string_view> in,
              std::vector<std::string_view> out, double flops) {
  Contract c;
  c.name = name, c.formula = formula, c.inputs = std::move(in), c.outputs = std::move(out);
  c.dims = {{"rows", 1, 24}, {"cols", 1, 600}};
  c.shapes = row_shapes();
  c.typical = {5, 131};
  c.timed = {1024, 1024};
  c.reduction = [](const Problem&) { return std::int64_t{1}; };
  c.cost = [flops](const Problem& p) { return Cost{flops * static_cast<double>(p.out[0].size()), traffic(p)}; };
  c.patterns = all_patterns();
  return c;
}

/// out[0][i] by `f(i, in) -> {value, scale}`.
template <class F> auto each(F f) {
  return [f](std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
    for (std::int64_t i = 0; i < out[0].spec.size(); ++i) {
      const auto [value, scale] = f(i, in, p);
      out[0].set(i, value, scale);
    }
  };
}
using Two = std::pair<double, double>;

void add_relu_and_add(std::vector<Contract>& list) {
  auto c = base("relu", "y = max(x, 0); NaN stays NaN", {"x"}, {"y"}, 0);
  c.flush = 0, c.huge = 1e30;
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 1); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem&) {
    const double x = in[0][i];
    return Two{x > 0 || std::isnan(x) ? x : 0, 0};
  });
  list.push_back(c);

  c = base("relu_backward", "dx = y > 0 ? dy : 0", {"y", "dy"}, {"dx"}, 0);
  c.flush = 0;
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem&) {
    if (std::isnan(in[0][i])) return Two{0, kAny};
    return in[0][i] > 0 ? Two{in[1][i], 0}
                        : Two{0, std::isfinite(in[1][i]) ? 0 : kAny};  // a mask by product gives 0 * inf
  });
  list.push_back(c);

  c = base("add", "y = a + b", {"a", "b"}, {"y"}, 1);
  c.flush = 0, c.huge = 1e30;
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem&) {
    return Two{in[0][i] + in[1][i], std::fabs(in[0][i]) + std::fabs(in[1][i])};
  });
  list.push_back(c);
}

void add_gelu(std::vector<Contract>& list) {
  auto c = base("gelu", "y = x Phi(x), or its tanh form", {"x"}, {"y"}, 4);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) { return alike_gelu(d, t, 1, v); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem& p) {
    const double x = in[0][i];
    if (std::isinf(x) && x < 0) return Two{0, kAny};  // -inf * 0
    return Two{gelu(x, p.as<hpcdl_gelu_args>().erf), 2 * std::fabs(x)};
  });
  list.push_back(c);

  c = base("gelu_backward", "dx = gelu'(x) dy", {"x", "dy"}, {"dx"}, 6);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) { return alike_gelu(d, t, 2, v); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem& p) {
    const double x = in[0][i], dy = in[1][i];
    if (std::isinf(x) || (std::isinf(dy) && std::fabs(x) > 1)) return Two{0, kAny};
    return Two{gelu_slope(x, p.as<hpcdl_gelu_args>().erf) * dy, std::fabs(dy) * gelu_slope_scale(x)};
  });
  list.push_back(c);

  c = base("bias_gelu", "y = gelu(x + bias)", {"x", "bias"}, {"y"}, 5);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = alike_gelu(d, t, 1, v);
    p.in.push_back({{{d[1]}, t}, Role::weight});
    return p;
  };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem& p) {
    const double b = in[1][i % in[1].size()], x = in[0][i] + b;
    if (std::isinf(x) && x < 0) return Two{0, kAny};
    return Two{gelu(x, p.as<hpcdl_gelu_args>().erf), 2 * (std::fabs(in[0][i]) + std::fabs(b) + std::fabs(x))};
  });
  list.push_back(c);
}

void bias_gelu_backward_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const bool erf = p.as<hpcdl_gelu_args>().erf;
  const auto cols = in[1].size();
  for (std::int64_t c = 0; c < cols; ++c) {
    double sum = 0, scale = 0, stored = 0;
    for (std::int64_t i = c; i < in[0].size(); i += cols) {
      const double x = in[0][i] + in[1][c], dy = in[2][i], dx = gelu_slope(x, erf) * dy;
      const double noise = std::fabs(dy) * (gelu_slope_scale(x) + std::fabs(in[0][i]) + std::fabs(in[1][c]));
      const bool open = std::isinf(x) || (std::isinf(dy) && std::fabs(x) > 1);
      out[0].set(i, dx, open ? kAny : noise);
      sum += dx, scale += open ? kAny : noise, stored += std::fabs(dx);
    }
    out[1].set(c, sum, scale, stored);
  }
}

void add_bias_gelu_backward(std::vector<Contract>& list) {
  auto c = base("bias_gelu_backward", "dx = gelu'(x + bias) dy; dbias = sum of dx over the rows", {"x", "bias", "dy"},
                {"dx", "dbias"}, 7);
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = alike_gelu(d, t, 1, v);
    p.in.push_back({{{d[1]}, t}, Role::weight});
    p.in.push_back({{{d[0], d[1]}, t}});
    p.out.push_back({{d[1]}, t});
    return p;
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[0]; };
  c.reference = bias_gelu_backward_reference;
  list.push_back(c);
}

void add_swiglu(std::vector<Contract>& list) {
  auto c = base("swiglu", "y = gate sigmoid(gate) up", {"gate", "up"}, {"y"}, 4);
  c.problem = [](const Dims& d, DType t, int) { return alike(d, t, 2); };
  c.reference = each([](std::int64_t i, const std::vector<Values>& in, const Problem&) {
    const double g = in[0][i], u = in[1][i];
    if ((std::isinf(g) && g < 0) || (std::isinf(u) && std::fabs(g) > 80)) return Two{0, kAny};
    const double y = g * sigmoid(g) * u;
    return Two{y, std::fabs(y) * (1 + std::fabs(g)) + kTiny * std::fabs(u) * (1 + std::fabs(g))};
  });
  list.push_back(c);

  c = base("swiglu_backward", "dgate = dy up (s + gate s (1 - s)), dup = dy gate s, s = sigmoid(gate)",
           {"gate", "up", "dy"}, {"dgate", "dup"}, 8);
  c.problem = [](const Dims& d, DType t, int) {
    Problem p = alike(d, t, 3);
    p.out.push_back(p.out[0]);
    return p;
  };
  // The product of two gradients may leave the range of a float before it is scaled back: magnitudes stay moderate.
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    for (std::int64_t i = 0; i < in[0].size(); ++i) {
      const double g = in[0][i], u = in[1][i], dy = in[2][i], s = sigmoid(g),
                   grow = (1 + std::fabs(g)) * (1 + std::fabs(g));
      const bool open = !std::isfinite(g) || !std::isfinite(u) || !std::isfinite(dy);
      const bool is_nan = std::isnan(g) || std::isnan(u * dy);
      out[0].set(i, is_nan ? NAN : dy * u * (s + g * s * (1 - s)),
                 is_nan ? 0
                 : open ? kAny
                        : std::fabs(dy * u) * (s * grow + kTiny * grow));
      const bool nan_up = std::isnan(g) || std::isnan(dy);
      out[1].set(i, nan_up ? NAN : dy * g * s,
                 nan_up ? 0
                 : open ? kAny
                        : std::fabs(dy) * (std::fabs(g) * s + kTiny) * (1 + std::fabs(g)));
    }
  };
  list.push_back(c);
}

}  // namespace

void add_elementwise(std::vector<Contract>& list) {
  add_relu_and_add(list);
  add_gelu(list);
  add_bias_gelu_backward(list);
  add_swiglu(list);
}

}  // namespace hpcdl::lab::verify::detail
