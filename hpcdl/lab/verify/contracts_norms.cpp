// Layer norm and RMS norm with their gradients.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify::detail {
namespace {

/// Variant 1: eps 1e-6, f32 weights whatever x is, no beta.
Problem norm_problem(const Dims& d, DType t, int variant, bool beta) {
  Problem p;
  const DType w = variant == 1 ? DType::f32 : t;
  p.in = {{{{d[0], d[1]}, t}}, {{{d[1]}, w}, Role::weight}};
  if (beta) p.in.push_back(variant == 1 ? Input{} : Input{{{d[1]}, w}, Role::weight});
  p.out = {{{d[0], d[1]}, t}};
  p.set_args(hpcdl_norm_args{variant == 1 ? 1e-6f : 1e-5f});
  return p;
}

struct Statistics {
  double mean = 0, var = 0, top = 0;  // top: the largest magnitude
};
Statistics statistics(const Values& x, std::int64_t row) {
  Statistics s;
  const auto n = x.dim(-1);
  for (std::int64_t c = 0; c < n; ++c) {
    s.mean += x[row * n + c] / static_cast<double>(n);
    s.top = std::max(s.top, std::fabs(x[row * n + c]));
  }
  for (std::int64_t c = 0; c < n; ++c)
    s.var += (x[row * n + c] - s.mean) * (x[row * n + c] - s.mean) / static_cast<double>(n);
  return s;
}

void layer_norm_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const double eps = static_cast<double>(p.as<hpcdl_norm_args>().eps);
  const auto n = in[1].size();
  for (std::int64_t r = 0; r * n < in[0].size(); ++r) {
    const auto s = statistics(in[0], r);
    const double rstd = 1 / std::sqrt(s.var + eps);
    // The mean is off by the rounding of a sum of magnitude `top`: every deviation, and with them rstd, inherits that.
    const double lost = s.top * rstd, drift = lost + 1 + lost * lost * 0x1p-20;
    for (std::int64_t c = 0; c < n; ++c) {
      const double hat = (in[0][r * n + c] - s.mean) * rstd, beta = in[2] ? in[2][c] : 0;
      out[0].set(r * n + c, hat * in[1][c] + beta,
                 std::fabs(in[1][c]) * (2 * lost + std::fabs(hat) * drift) + std::fabs(beta));
    }
  }
}

void rms_norm_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const double eps = static_cast<double>(p.as<hpcdl_norm_args>().eps);
  const auto n = in[1].size();
  for (std::int64_t r = 0; r * n < in[0].size(); ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < n; ++c) squares += in[0][r * n + c] * in[0][r * n + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (std::int64_t c = 0; c < n; ++c) {
      const double y = in[0][r * n + c] * rstd * in[1][c];
      out[0].set(r * n + c, y, 2 * std::fabs(y));
    }
  }
}

/// Gradients from kept statistics. mean == nullptr: RMS norm.
void norm_backward(std::vector<Expected>& out, const Values& x, const Values& gamma, const Values* mean,
                   const Values& rstd, const Values& dy) {
  const auto n = gamma.size();
  std::vector<double> dg(static_cast<std::size_t>(n)), dg_scale = dg, db = dg, db_scale = dg;
  for (std::int64_t r = 0; r < rstd.size(); ++r) {
    double g_mean = 0, g_abs = 0, gh_mean = 0, gh_abs = 0;
    const auto hat = [&](std::int64_t c) { return (x[r * n + c] - (mean ? (*mean)[r] : 0)) * rstd[r]; };
    for (std::int64_t c = 0; c < n; ++c) {
      const double g = dy[r * n + c] * gamma[c];
      if (mean) g_mean += g / static_cast<double>(n), g_abs += std::fabs(g) / static_cast<double>(n);
      gh_mean += g * hat(c) / static_cast<double>(n), gh_abs += std::fabs(g * hat(c)) / static_cast<double>(n);
    }
    for (std::int64_t c = 0; c < n; ++c) {
      const double g = dy[r * n + c] * gamma[c], h = hat(c);
      out[0].set(r * n + c, rstd[r] * (g - g_mean - h * gh_mean),
                 rstd[r] * (std::fabs(g) + g_abs + std::fabs(h) * gh_abs));
      const auto at = static_cast<std::size_t>(c);
      dg[at] += dy[r * n + c] * h, dg_scale[at] += std::fabs(dy[r * n + c] * h);
      db[at] += dy[r * n + c], db_scale[at] += std::fabs(dy[r * n + c]);
    }
  }
  for (std::int64_t c = 0; c < n; ++c) {
    const auto at = static_cast<std::size_t>(c);
    out[1].set(c, dg[at], dg_scale[at]);
    if (mean) out[2].set(c, db[at], db_scale[at]);
  }
}

Contract base(std::string_view name, std::string_view formula, double flops) {
  Contract c;
  c.name = name, c.formula = formula;
  c.inputs = {"x", "gamma", "beta"}, c.outputs = {"y"};
  c.dims = {{"rows", 1, 24}, {"cols", 1, 600}};
  c.shapes = row_shapes();
  c.typical = {5, 131};
  c.timed = {1024, 1024};
  c.variants = 2;
  c.reduction = [](const Problem& p) { return p.in[0].spec[1]; };
  c.cost = [flops](const Problem& p) { return Cost{flops * static_cast<double>(p.in[0].spec.size()), traffic(p)}; };
  c.patterns = all_patterns();
  return c;
}

void add_backward(std::vector<Contract>& list) {
  const auto params = [](Problem& p, bool mean, DType weight) {
    const Spec x = p.in[0].spec, stat{{x[0]}, DType::f32};
    if (mean) p.in.push_back({stat, Role::derived});
    p.in.push_back({stat, Role::derived});
    p.in.push_back({x});
    for (int i = mean ? 2 : 1; i > 0; --i) p.out.push_back({{x[1]}, weight});
  };
  auto c = base(
      "layer_norm_backward",
      "dx = rstd (g - mean(g) - h mean(g h)), dgamma = sum(dy h), dbeta = sum(dy); g = dy gamma, h = (x - mean) rstd",
      8);
  c.inputs = {"x", "gamma", "mean", "rstd", "dy"}, c.outputs = {"dx", "dgamma", "dbeta"};
  c.problem = [params](const Dims& d, DType t, int v) {
    Problem p = norm_problem(d, t, v, false);
    params(p, true, p.in[1].spec.dtype);
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[i].size(); ++r) {
      const auto s = statistics(in[0], r);
      in[i][r] = i == 2 ? s.mean : 1 / std::sqrt(s.var + static_cast<double>(p.as<hpcdl_norm_args>().eps));
    }
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    norm_backward(out, in[0], in[1], &in[2], in[3], in[4]);
  };
  c.reduction = [](const Problem& p) { return std::max(p.in[0].spec[0], p.in[0].spec[1]); };
  c.patterns.pop_back(), c.patterns.pop_back();  // infinities: the statistics are none
  list.push_back(c);

  c.name = "rms_norm_backward";
  c.formula = "dx = rstd (g - h mean(g h)), dweight = sum(dy h); g = dy weight, h = x rstd";
  c.inputs = {"x", "weight", "rstd", "dy"}, c.outputs = {"dx", "dweight"};
  c.problem = [params](const Dims& d, DType t, int v) {
    Problem p = norm_problem(d, t, v, false);
    params(p, false, p.in[1].spec.dtype);
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[2].size(); ++r) {
      const auto s = statistics(in[0], r);
      in[2][r] = 1 / std::sqrt(s.var + s.mean * s.mean + static_cast<double>(p.as<hpcdl_norm_args>().eps));
    }
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    norm_backward(out, in[0], in[1], nullptr, in[2], in[3]);
  };
  list.push_back(c);
}

}  // namespace

void add_norms(std::vector<Contract>& list) {
  auto c = base("layer_norm",
                "y = (x - mean) / sqrt(var + eps) gamma + beta over the last dim, var without Bessel's correction; "
                "beta is optional",
                5);
  c.problem = [](const Dims& d, DType t, int v) { return norm_problem(d, t, v, true); };
  c.reference = layer_norm_reference;
  c.huge = 1e15;
  list.push_back(c);
  c = base("rms_norm", "y = x / sqrt(mean(x^2) + eps) weight over the last dim", 4);
  c.inputs = {"x", "weight"};
  c.problem = [](const Dims& d, DType t, int v) { return norm_problem(d, t, v, false); };
  c.reference = rms_norm_reference;
  c.huge = 1e15;
  list.push_back(c);
  add_backward(list);
}

}  // namespace hpcdl::lab::verify::detail
