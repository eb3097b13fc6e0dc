#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"

namespace hpcdl::contract {

struct RowStatistics {
  double mean = 0, var = 0, squares = 0, top = 0;  // squares: their mean; top: the largest magnitude
};
inline RowStatistics row_statistics(const Values& x, std::int64_t row, std::int64_t n) {
  RowStatistics s;
  for (auto i = row * n; i < (row + 1) * n; ++i) {
    s.mean += x[i] / static_cast<double>(n), s.squares += x[i] * x[i] / static_cast<double>(n);
    s.top = std::max(s.top, std::fabs(x[i]));
  }
  for (auto i = row * n; i < (row + 1) * n; ++i) s.var += (x[i] - s.mean) * (x[i] - s.mean) / static_cast<double>(n);
  return s;
}

/// x, gamma, beta to y, mean, rstd
inline void layer_norm_reference(Outputs out, Inputs in, const LayerNorm::Args& a) {
  const auto n = in[1].size();
  for (std::int64_t r = 0; r * n < in[0].size(); ++r) {
    const auto s = row_statistics(in[0], r, n);
    const double rstd = 1 / std::sqrt(s.var + static_cast<double>(a.eps));
    // The mean has the rounding error of a sum of magnitude `top`: every deviation, and therefore rstd, inherits it.
    const double lost = s.top * rstd, drift = lost + 1 + lost * lost * 0x1p-20;
    for (std::int64_t c = 0; c < n; ++c) {
      const double hat = (in[0][r * n + c] - s.mean) * rstd, beta = in[2] ? in[2][c] : 0;
      out[0].set(r * n + c, hat * in[1][c] + beta,
                 std::fabs(in[1][c]) * (2 * lost + std::fabs(hat) * drift) + std::fabs(beta));
    }
    out[1].set(r, s.mean, s.top);
    out[2].set(r, rstd, rstd * drift);
  }
}

/// Gradients from stored statistics. mean == nullptr: RMS norm.
inline void norm_backward_reference(Outputs out, const Values& x, const Values& gamma, const Values* mean,
                                    const Values& rstd, const Values& dy) {
  const auto n = gamma.size();
  std::vector<Sum> dg(static_cast<std::size_t>(n)), db(dg);
  for (std::int64_t r = 0; r < rstd.size(); ++r) {
    Sum g_sum, gh_sum;
    const auto hat = [&](std::int64_t c) { return (x[r * n + c] - (mean ? (*mean)[r] : 0)) * rstd[r]; };
    for (std::int64_t c = 0; c < n; ++c) {
      const double g = dy[r * n + c] * gamma[c] / static_cast<double>(n);
      if (mean) g_sum.add(g);
      gh_sum.add(g * hat(c));
    }
    for (std::int64_t c = 0; c < n; ++c) {
      const double g = dy[r * n + c] * gamma[c], h = hat(c);
      out[0].set(r * n + c, rstd[r] * (g - g_sum.value - h * gh_sum.value),
                 rstd[r] * (std::fabs(g) + g_sum.scale + std::fabs(h) * gh_sum.scale));
      dg[static_cast<std::size_t>(c)].add(dy[r * n + c] * h), db[static_cast<std::size_t>(c)].add(dy[r * n + c]);
    }
  }
  for (std::int64_t c = 0; c < n; ++c) {
    dg[static_cast<std::size_t>(c)].put(out[1], c);
    if (mean) db[static_cast<std::size_t>(c)].put(out[2], c);
  }
}

/// x and its weight. Variant 1: eps 1e-6, f32 weights for any x.
inline Problem norm_problem(const Dims& d, DType t, int variant) {
  Problem p = alike(d, t, 1);
  p.in.push_back({{{d[1]}, variant == 1 ? DType::f32 : t}, Role::weight});
  const float eps = variant == 1 ? 1e-6f : 1e-5f;
  p.set_args(hpcdl_norm_args{eps}, LayerNorm::Args{eps});
  return p;
}
/// The problem of the gradient of a norm that stores `statistics` numbers per row and has as many parameters.
inline Problem norm_backward_problem(const Dims& d, DType t, int variant, int statistics) {
  Problem p = norm_problem(d, t, variant);
  p.in.insert(p.in.end(), static_cast<std::size_t>(statistics), {{{d[0]}, DType::f32}, Role::derived});
  p.in.push_back({p.out[0]});
  p.out.insert(p.out.end(), static_cast<std::size_t>(statistics), p.in[1].spec);
  return p;
}
inline void set_norm(Contract& c, double flops) {
  set_row_sizes(c);
  c.flops = flops_per_input(flops);
  c.variants = 2, c.huge = 1e15;
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1]; };
}
inline void set_norm_backward(Contract& c) {
  c.flops = flops_per_input(8);
  c.huge = 1e4;
  c.reduction = [](const Problem& p) {
    const auto cols = p.in[0].spec[-1];
    return std::max(cols, p.in[0].spec.size() / std::max<std::int64_t>(cols, 1));
  };
  c.patterns = finite_patterns();  // infinities have no statistics
}

inline Contracts layer_norm_contracts() {
  auto c = of<LayerNorm>("layer_norm",
                         "y = (x - mean) / sqrt(var + eps) gamma + beta over the last dim, var without Bessel's "
                         "correction; beta is optional",
                         {"x", "gamma", "beta"}, {"y"});
  set_norm(c, 5);
  c.problem = [](const Dims& d, DType t, int v) {  // variant 1: no beta
    Problem p = norm_problem(d, t, v);
    p.in.push_back(v == 1 ? Input{} : p.in[1]);
    return p;
  };
  c.reference = with_args<LayerNorm::Args>(layer_norm_reference);

  auto b = backward_of(
      c, "layer_norm_backward",
      "dx = rstd (g - mean(g) - h mean(g h)), dgamma = sum(dy h), dbeta = sum(dy); g = dy gamma, h = (x - mean) rstd",
      {"x", "gamma", "mean", "rstd", "dy"}, {"dx", "dgamma", "dbeta"});
  set_norm_backward(b);
  b.problem = [](const Dims& d, DType t, int v) { return norm_backward_problem(d, t, v, 2); };
  b.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[i].size(); ++r) {
      const auto s = row_statistics(in[0], r, in[1].size());
      in[i][r] = i == 2 ? s.mean : 1 / std::sqrt(s.var + static_cast<double>(p.as<LayerNorm::Args>().eps));
    }
  };
  b.reference = [](Outputs out, Inputs in, const void*) {
    norm_backward_reference(out, in[0], in[1], &in[2], in[3], in[4]);
  };
  return {c, b};
}

inline void layer_norm_cases(auto& to) {
  to.add("layer_norm", "RxC", {"x RC", "gamma C", "beta C"}, plane_shapes({1024, 768}),
         [](const auto& v) { return layer_norm(v[0], v[1], v[2]); });
  to.add("layer_norm+residual", "RxC", {"x RC", "gamma C", "residual RC", "beta C"}, plane_shapes({1024, 768}),
         [](const auto& v) { return add_layer_norm(v[0], v[2], v[1], v[3])[1]; });
}

}  // namespace hpcdl::contract
