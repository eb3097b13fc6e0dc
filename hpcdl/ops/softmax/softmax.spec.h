#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl::contract {

/// The largest of several numbers; NaN if any of them is NaN.
struct Top {
  double top = -INFINITY;
  bool nan = false;
  void take(double x) {
    nan = nan || std::isnan(x);
    top = std::max(top, x);
  }
  double get() const { return nan ? NAN : top; }
};

/// The number of columns that row `r` of (..., R, C) sees.
inline std::int64_t visible(const Spec& s, std::int64_t r, bool causal) {
  return causal ? r % s[-2] + s[-1] - s[-2] + 1 : s[-1];
}

/// Row of x to probabilities; `noise`, if requested: the magnitudes that rounding errors are relative to.
inline void softmax_row(std::span<const double> x, std::int64_t seen, double scale, std::span<double> p,
                        std::span<double> noise = {}) {
  const auto n = static_cast<std::size_t>(seen);
  Top top;
  for (std::size_t c = 0; c < n; ++c) top.take(scale * x[c]);
  double sum = 0, mean = 0;
  for (std::size_t c = 0; c < x.size(); ++c) sum += p[c] = c < n ? std::exp(scale * x[c] - top.get()) : 0;
  for (std::size_t c = 0; c < n; ++c) p[c] /= sum;
  if (noise.empty()) return;
  for (std::size_t c = 0; c < n; ++c) mean += p[c] > 0 ? p[c] * std::fabs(scale * x[c]) : 0;
  // The exponent carries an error relative to both of its terms.
  for (std::size_t c = 0; c < n; ++c)
    noise[c] = p[c] > 0 ? p[c] * (1 + std::fabs(scale * x[c]) + std::fabs(top.get()) + mean) : 0;
}

inline void softmax_reference(Outputs out, Inputs in, const Softmax::Args& a) {
  const auto cols = static_cast<std::size_t>(in[0].dim(-1));
  auto& y = out[0];
  for (std::size_t r = 0, i = 0; i < in[0].v.size(); ++r, i += cols)
    softmax_row({&in[0].v[i], cols}, visible(in[0].spec, static_cast<std::int64_t>(r), a.causal),
                static_cast<double>(a.scale), {&y.value[i], cols}, {&y.scale[i], cols});
  y.stored = y.value;
}

inline void softmax_backward_reference(Outputs out, Inputs in, const Softmax::Args& a) {
  const double s = static_cast<double>(a.scale);
  const auto cols = in[0].dim(-1);
  for (std::int64_t begin = 0; begin < in[0].size(); begin += cols) {
    Sum dot;
    for (std::int64_t i = begin; i < begin + cols; ++i) dot.add(in[0][i] * in[1][i]);
    for (std::int64_t i = begin; i < begin + cols; ++i) {
      const bool open = in[0][i] == 0 && !std::isfinite(dot.value);  // masked: 0 or 0 * NaN
      out[0].set(i, s * in[0][i] * (in[1][i] - dot.value),
                 open ? kAny : std::fabs(s * in[0][i]) * (std::fabs(in[1][i]) + 2 * dot.scale));
    }
  }
}

/// Variants: plain, scaled, causal over (2, rows, cols).
inline Problem softmax_problem(const Dims& d, DType t, int variant, int operands) {
  const bool causal = variant == 2;
  Problem p = alike({causal ? std::min(d[0], d[1]) : d[0], d[1]}, t, operands);
  if (causal) {
    p.out[0].shape = {2, p.out[0][0], d[1]};
    for (auto& i : p.in) i.spec = p.out[0];
  }
  const float scale = variant == 0 ? 1.0f : 0.125f;
  p.set_args(hpcdl_softmax_args{scale, causal}, Softmax::Args{.scale = scale, .causal = causal});
  return p;
}

inline Contracts softmax_contracts() {
  auto c = of<Softmax>("softmax",
                       "y = exp(scale x - max) / sum over the last dim; causal: row r of (..., R, C) sees columns 0 .. "
                       "r + C - R, the others are 0",
                       {"x"}, {"y"});
  set_row_sizes(c);
  c.row_shapes = {{1, 333}, {1, 2500}};
  c.row_alone = [](const Dims& many, int variant, std::int64_t row) {  // with the columns that it sees
    return Dims{1, variant == 2 ? many[1] - many[0] + row + 1 : many[1]};
  };
  c.flops = flops_per_result(3);
  c.variants = 3;
  c.problem = [](const Dims& d, DType t, int v) { return softmax_problem(d, t, v, 1); };
  c.reference = with_args<Softmax::Args>(softmax_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1]; };

  auto b = backward_of(c, "softmax_backward", "dx = scale y (dy - sum(y dy)), y a softmax", {"y", "dy"}, {"dx"});
  b.problem = [](const Dims& d, DType t, int v) {
    Problem p = softmax_problem(d, t, v, 2);
    p.in[0].role = Role::derived;
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t, const Problem& p,
                const std::function<double(std::int64_t)>& random) {
    const auto cols = static_cast<std::size_t>(in[0].dim(-1));
    for (std::size_t r = 0, i = 0; i < in[0].v.size(); ++r, i += cols) {
      std::vector<double> x(cols);
      for (std::size_t k = 0; k < cols; ++k) x[k] = 6 * random(static_cast<std::int64_t>(i + k)) - 3;
      softmax_row(x, visible(in[0].spec, static_cast<std::int64_t>(r), p.as<Softmax::Args>().causal), 1,
                  {&in[0].v[i], cols});
    }
  };
  b.reference = with_args<Softmax::Args>(softmax_backward_reference);
  return {c, b};
}

inline void softmax_cases(auto& to) {
  to.add("softmax", "RxC", {"x RC"}, {{4096, 8192}, {4096, 1024}}, [](const auto& v) {
      return softmax(v[0]);
    }).forward_shapes = {{4096, 32768}};
  to.add("softmax+causal", "BxTxT", {"x BTT"}, {{48, 1024, 1024}},
         [](const auto& v) { return softmax(v[0], {.scale = 0.125f, .causal = true}); });
}

}  // namespace hpcdl::contract
