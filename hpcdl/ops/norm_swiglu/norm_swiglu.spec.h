#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/int4_linear/int4_linear.spec.h"
#include "hpcdl/ops/linear/linear.spec.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/rms_norm/rms_norm.spec.h"

namespace hpcdl::contract {

/// A row of rms_norm(x), whose elements may be rounded to the type of x and inherit the error of rstd.
inline std::vector<double> normed_row(const Values& x, const Values& gamma, std::int64_t row, double eps) {
  const auto k = gamma.size();
  std::vector<double> h(static_cast<std::size_t>(k));
  const double rstd = 1 / std::sqrt(row_statistics(x, row, k).squares + eps);
  for (std::int64_t i = 0; i < k; ++i) h[static_cast<std::size_t>(i)] = x[row * k + i] * rstd * gamma[i];
  return h;
}

/// h times row j of a dense matrix; `stored`: the result is rounded to the type of x before it is used.
struct NormedProduct {
  double value = 0, scale = 0, stored = 0;
  NormedProduct(const std::vector<double>& h, const Values& w, const Values& bias, std::int64_t j) {
    Sum z;
    if (bias) z.add(bias[j]);
    for (std::size_t i = 0; i < h.size(); ++i) z.add(h[i] * w[j * std::ssize(h) + static_cast<std::int64_t>(i)]);
    value = z.value, scale = 3 * z.scale, stored = z.scale + std::fabs(z.value);
  }
};

/// For dense matrices.
inline void norm_swiglu_reference(Outputs out, Inputs in, const NormSwiglu::Args& a) {
  const auto k = in[1].size(), n = in[2].dim(0);
  for (std::int64_t r = 0; r * k < in[0].size(); ++r) {
    const auto h = normed_row(in[0], in[1], r, static_cast<double>(a.eps));
    for (std::int64_t j = 0; j < n; ++j) {
      const NormedProduct gate(h, in[2], in[5], j), up(h, in[6], in[9], j);
      const double s = silu(gate.value), y = s * up.value, by_gate = 1.1 * std::fabs(up.value), by_up = std::fabs(s);
      out[0].set(r * n + j, y, 2 * std::fabs(y) + by_gate * gate.scale + by_up * up.scale,
                 std::fabs(y) + by_gate * gate.stored + by_up * up.stored);
    }
  }
}

inline Contracts norm_swiglu_contracts() {
  auto c = of<NormSwiglu>(
      "norm_swiglu", "y = silu(h Wg^T + bg) * (h Wu^T + bu), h = rms_norm(x); matrices (N, K); biases are optional",
      {"x", "gamma", "gate", "gate scale", "gate offset", "gate bias", "up", "up scale", "up offset", "up bias"},
      {"y"});
  c.dims = {{"M", 1, 20}, {"N", 1, 70}, {"K", 1, 90}};
  c.shapes = {{1, 16, 32}, {1, 1, 1}, {1, 7, 8}, {1, 40, 72}, {3, 17, 9}, {0, 8, 8}, {13, 33, 64}};
  c.typical = {1, 35, 64};
  c.rows = "M";
  c.row_shapes = {{1, 35, 67}, {1, 150, 130}};
  c.timed = {1, 5632, 2048};
  c.problem = [](const Dims& d, DType t, int) {
    Problem p;
    const Input w{{{d[1], d[2]}, t}, Role::weight}, bias{{{d[1]}, t}, Role::weight};
    p.in = {{{{d[0], d[2]}, t}}, {{{d[2]}, t}, Role::weight}, w, {}, {}, bias, w, {}, {}, bias};
    p.out = {{{d[0], d[1]}, t}};
    return p;
  };
  c.reference = with_args<NormSwiglu::Args>(norm_swiglu_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1] + 2; };
  c.flops = [](const Problem& p) {
    return 4.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[-1]);
  };
  return {c};
}

/// (N, K), in INT4 with groups of 64 or dense.
auto decoded_matrix(const auto& v, const std::string& name, std::int64_t n, std::int64_t k, bool int4) {
  if (int4) return int4_matrix(v, name, name + ".scale", n, k, 64);
  return Matrix<decltype(v.none())>{v.graph.input(name, {{n, k}, v.dtype}), v.none(), v.none(), v.none()};
}

/// One token.
inline void norm_swiglu_cases(auto& to) {
  for (const bool int4 : {false, true})
    to.add_forward(int4 ? "norm_swiglu+int4" : "norm_swiglu", "NxK", {"x 11K", "gamma K"},
                   {{11008, 4096}, {5632, 2048}}, [int4](const auto& v) {
                     const auto gate = decoded_matrix(v, "gate", v.dim('N'), v.dim('K'), int4),
                                up = decoded_matrix(v, "up", v.dim('N'), v.dim('K'), int4);
                     return norm_swiglu(v[0], v[1], gate, up, {.constant_weights = true});
                   });
}

}  // namespace hpcdl::contract
