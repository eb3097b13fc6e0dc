#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/smooth.h"
#include "hpcdl/ops/softmax/softmax.spec.h"

namespace hpcdl::contract {

/// log(sum(exp(x))) of one row; `noise`: the magnitudes that were summed.
inline double log_sum_exp(const Values& x, std::int64_t row, double* noise = nullptr) {
  const auto n = x.dim(-1);
  Top top;
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) top.take(x[row * n + c]);
  for (std::int64_t c = 0; c < n; ++c) sum += std::exp(x[row * n + c] - top.get());
  if (noise) *noise = 1 + std::fabs(top.get()) + std::log(static_cast<double>(n));
  return top.get() + std::log(sum);
}

/// loss, count, lse
inline void cross_entropy_reference(Outputs out, Inputs in, const CrossEntropy::Args&) {
  double loss = 0, scale = 0, count = 0;
  for (std::int64_t r = 0; r < in[1].size(); ++r) {
    if (in[1][r] < 0) {
      out[2].set(r, 0, 0);
      continue;
    }
    double noise = 0;
    const double x = in[0][r * in[0].dim(-1) + static_cast<std::int64_t>(in[1][r])],
                 lse = log_sum_exp(in[0], r, &noise);
    loss += lse - x, scale += noise + std::fabs(x), count += 1;
    out[2].set(r, lse, noise);
  }
  out[0].set(0, loss, scale);
  out[1].set(0, count, 0);
}

inline void cross_entropy_backward_reference(Outputs out, Inputs in, const CrossEntropy::Args&) {
  const auto n = in[0].dim(-1);
  for (std::int64_t r = 0; r < in[1].size(); ++r)
    for (std::int64_t k = 0; k < n; ++k) {
      const auto i = r * n + k;
      const double lse = in[2][r], p = std::exp(in[0][i] - lse), hot = in[1][r] == static_cast<double>(k);
      if (in[1][r] < 0) out[0].set(i, 0, 0);
      else
        out[0].set(i, (p - hot) * in[3][0],
                   std::fabs(in[3][0]) * (p * (1 + std::fabs(in[0][i]) + std::fabs(lse)) + hot));
    }
}

inline Problem cross_entropy_problem(const Dims& d, DType t) {
  Problem p;
  p.in = {{{{d[0], d[1]}, t}}, {{{d[0]}, DType::i32}, Role::index_or_none, d[1]}};
  p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
  return p;
}

inline Contracts cross_entropy_contracts() {
  auto c = of<CrossEntropy>(
      "cross_entropy",
      "loss = sum over rows with target >= 0 of logsumexp(x) - x[target]; count = number of those rows",
      {"logits", "targets"}, {"loss", "count"});
  set_row_sizes(c, "vocabulary", {256, 8192});
  c.flops = flops_per_input(2);
  c.problem = [](const Dims& d, DType t, int) { return cross_entropy_problem(d, t); };
  c.reference = with_args<CrossEntropy::Args>(cross_entropy_reference);
  c.reduction = [](const Problem& p) {
    return p.in[0].spec[-1] + p.in[0].spec.size() / std::max<std::int64_t>(p.in[0].spec[-1], 1);
  };

  auto b = backward_of(c, "cross_entropy_backward",
                       "dx = (exp(x - lse) - onehot(target)) dloss, 0 where target < 0; lse = logsumexp(x)",
                       {"logits", "targets", "lse", "dloss"}, {"dlogits"});
  b.in_place = true;
  b.problem = [](const Dims& d, DType t, int) {
    Problem p = cross_entropy_problem(d, t);
    p.in.push_back({{{d[0]}, DType::f32}, Role::derived});
    p.in.push_back({{{1}, DType::f32}, Role::weight});
    p.out = {p.in[0].spec};
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t, const Problem&, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[2].size(); ++r) in[2][r] = log_sum_exp(in[0], r);
  };
  b.reference = with_args<CrossEntropy::Args>(cross_entropy_backward_reference);
  b.reduction = [](const Problem&) { return std::int64_t{1}; };
  b.patterns = finite_patterns();  // with infinities lse itself is infinite, and nothing is defined
  return {c, b};
}

inline void cross_entropy_cases(auto& to) {
  to.add("cross_entropy", "TxV", {"logits TV", "targets T<V"}, {{2048, 50304}},
         [](const auto& v) { return cross_entropy(v[0], v[1])[0]; });
  to.add("cross_entropy+smoothing", "TxV", {"logits TV", "targets T<V"}, {{8192, 1000}, {128, 10}},
         [](const auto& v) { return cross_entropy(v[0], v[1], {.label_smoothing = 0.1f})[0]; });
}

}  // namespace hpcdl::contract
