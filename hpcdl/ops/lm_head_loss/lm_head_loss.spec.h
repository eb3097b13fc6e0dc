#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/ops/mlp/mlp.spec.h"
#include "hpcdl/ops/softmax/softmax.spec.h"

namespace hpcdl::contract {

/// The logits of one row and their log-sum-exp; `noise`: the largest sum of magnitudes of any logit.
struct LogitRow {
  std::vector<Sum> logits;
  double lse = 0, noise = 0;

  LogitRow(const Values& h, const Values& w, std::int64_t r) : logits(static_cast<std::size_t>(w.dim(0))) {
    const auto c = w.dim(1);
    Top top;
    for (std::int64_t v = 0; v < w.dim(0); ++v) {
      auto& x = logits[static_cast<std::size_t>(v)];
      for (std::int64_t k = 0; k < c; ++k) x.add(h[r * c + k] * w[v * c + k]);
      top.take(x.value), noise = std::max(noise, x.scale);
    }
    double sum = 0;
    for (const auto& x : logits) sum += std::exp(x.value - top.get());
    lse = top.get() + std::log(sum);
    noise = 1 + 2 * noise + std::fabs(top.top) + std::log(static_cast<double>(w.dim(0)));
  }
};

/// loss, count, lse with its rounding error, logits
inline void lm_head_reference(Outputs out, Inputs in, const LmHeadLoss::Args&) {
  Sum loss;
  double noise = 0, count = 0;
  const auto rows = in[2].size(), vocabulary = in[1].dim(0);
  for (std::int64_t r = 0; r < rows; ++r) {
    const LogitRow row(in[0], in[1], r);
    out[2].set(r, row.lse, row.noise), out[2].set(rows + r, 0, row.noise);
    for (std::int64_t v = 0; out[3].spec.size() > 0 && v < vocabulary; ++v)
      row.logits[static_cast<std::size_t>(v)].put(out[3], r * vocabulary + v);
    if (in[2][r] < 0) continue;
    loss.add(row.lse - row.logits[static_cast<std::size_t>(in[2][r])].value);
    noise += row.noise, count += 1;
  }
  out[0].set(0, loss.value, loss.scale + noise);
  out[1].set(0, count, 0);
}

/// h, weight, targets, lse, (logits), dloss to dh, dweight. The logits' gradient may be rounded to the type of h.
inline void lm_head_backward_reference(Outputs out, Inputs in, const LmHeadLoss::Args&) {
  const auto c = in[1].dim(1);
  std::vector<Chained> dh(static_cast<std::size_t>(in[0].size())), dw(static_cast<std::size_t>(in[1].size()));
  for (std::int64_t r = 0; r < in[2].size(); ++r) {
    if (in[2][r] < 0) {  // 0, or 0 times NaN or infinity
      for (std::int64_t v = 0; v < in[1].dim(0); ++v)
        for (std::int64_t k = 0; k < c; ++k)
          if (!std::isfinite(in[0][r * c + k])) dw[static_cast<std::size_t>(v * c + k)].scale = kAny;
      continue;
    }
    const LogitRow row(in[0], in[1], r);
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

inline Problem lm_head_problem(const Dims& d, DType t) {
  Problem p;
  p.in = {{{{d[0], d[2]}, t}}, {{{d[1], d[2]}, t}, Role::weight}, {{{d[0]}, DType::i32}, Role::index_or_none, d[1]}};
  p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
  return p;
}
inline auto lm_head_flops(double n) {
  return [n](const Problem& p) {
    return n * static_cast<double>(p.in[0].spec[0]) * static_cast<double>(p.in[1].spec.size());
  };
}

inline Contracts lm_head_loss_contracts() {
  auto c = of<LmHeadLoss>(
      "lm_head_loss",
      "logits = h W^T; loss = sum over rows with target >= 0 of logsumexp(logits) - logits[target]; count = number of "
      "those rows",
      {"h", "weight", "targets"}, {"loss", "count"});
  c.dims = {{"rows", 1, 20}, {"vocabulary", 1, 200}, {"width", 1, 70}};
  c.shapes = {{4, 64, 16}, {1, 1, 1},     {2, 3, 5},    {3, 17, 8},   {5, 31, 33},  {7, 65, 15},
              {0, 16, 8},  {16, 129, 64}, {9, 257, 24}, {2, 3000, 9}, {40, 300, 48}};
  c.typical = {5, 131, 19};
  c.rows = "rows";
  c.row_shapes = {{1, 131, 19}, {1, 2500, 19}};  // one chunk of the vocabulary; several
  c.timed = {128, 4096, 256};
  c.problem = [](const Dims& d, DType t, int) { return lm_head_problem(d, t); };
  c.reference = with_args<LmHeadLoss::Args>(lm_head_reference);
  c.reduction = [](const Problem& p) { return p.in[2].spec.size() + p.in[1].spec[0] + p.in[1].spec[1]; };
  c.flops = lm_head_flops(2);
  c.patterns = tame_patterns();

  auto b = backward_of(
      c, "lm_head_loss_backward",
      "g = (exp(h W^T - lse) - onehot(target)) dloss, 0 where target < 0; dh = g W, dweight = g^T h; lse = logsumexp(h "
      "W^T); the fifth input is absent",
      {"h", "weight", "targets", "lse", "logits", "dloss"}, {"dh", "dweight"});
  b.problem = [](const Dims& d, DType t, int) {
    Problem p = lm_head_problem(d, t);
    p.in.insert(p.in.end(), {{{{d[0]}, DType::f32}, Role::derived}, {}, {{{1}, DType::f32}, Role::weight}});
    p.out = {p.in[0].spec, p.in[1].spec};
    return p;
  };
  b.derive = [](std::vector<Values>& in, std::size_t, const Problem&, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[3].size(); ++r) in[3][r] = LogitRow(in[0], in[1], r).lse;
  };
  b.reference = with_args<LmHeadLoss::Args>(lm_head_backward_reference);
  b.flops = lm_head_flops(6);
  return {c, b};
}

inline void lm_head_loss_cases(auto& to) {
  to.add("lm_head_loss", "TxVxC", {"h TC", "w VC", "targets T<V"}, {{256, 50304, 768}},
         [](const auto& v) { return lm_head_loss(v[0], v[1], v[2])[0]; });
}

}  // namespace hpcdl::contract
