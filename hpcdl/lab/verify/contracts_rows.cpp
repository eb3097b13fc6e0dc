// Softmax and cross-entropy with their gradients.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify::detail {
namespace {

/// Variants: plain, scaled, causal over (2, rows, cols).
Problem softmax_problem(const Dims& d, DType t, int variant, int operands) {
  Problem p;
  const auto rows = variant == 2 ? std::min(d[0], d[1]) : d[0];
  const Spec s = variant == 2 ? Spec{{2, rows, d[1]}, t} : Spec{{rows, d[1]}, t};
  for (int i = 0; i < operands; ++i) p.in.push_back({s});
  p.out = {s};
  p.set_args(hpcdl_softmax_args{variant == 0 ? 1.0f : 0.125f, variant == 2});
  return p;
}
std::int64_t visible(const Spec& s, std::int64_t row, bool causal) {
  return causal ? row % s[-2] + s[-1] - s[-2] + 1 : s[-1];
}

struct RowMax {
  double top = -INFINITY;
  bool nan = false;
  void take(double x) {
    nan = nan || std::isnan(x);
    top = std::max(top, x);
  }
  double get() const { return nan ? NAN : top; }
};

void softmax_row(Expected* out, double* probabilities, const double* x, std::int64_t at, std::int64_t n,
                 std::int64_t cols, double scale) {
  RowMax top;
  for (std::int64_t c = 0; c < n; ++c) top.take(scale * x[c]);
  double sum = 0, mean = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += std::exp(scale * x[c] - top.get());
  for (std::int64_t c = 0; c < n; ++c) {
    const double p = std::exp(scale * x[c] - top.get()) / sum;
    mean += p > 0 ? p * std::fabs(scale * x[c]) : 0;
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    const double p = c < n ? std::exp(scale * x[c] - top.get()) / sum : 0;
    if (probabilities) probabilities[c] = p;
    // The exponent carries an error in units of both of its terms.
    if (out) out->set(at + c, p, p > 0 ? p * (1 + std::fabs(scale * x[c]) + std::fabs(top.get()) + mean) : 0);
  }
}

void add_softmax(std::vector<Contract>& list) {
  Contract c;
  c.name = "softmax";
  c.formula =
      "y = exp(scale x - max) / sum over the last dim; causal: row r of (..., R, C) sees columns 0 .. r + C - R, the "
      "others are 0";
  c.inputs = {"x"}, c.outputs = {"y"};
  c.dims = {{"rows", 1, 24}, {"cols", 1, 600}};
  c.shapes = row_shapes();
  c.typical = {5, 131};
  c.timed = {1024, 1024};
  c.variants = 3;
  c.problem = [](const Dims& d, DType t, int v) { return softmax_problem(d, t, v, 1); };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
    const auto a = p.as<hpcdl_softmax_args>();
    const auto cols = in[0].dim(-1);
    for (std::int64_t r = 0; r * cols < in[0].size(); ++r)
      softmax_row(&out[0], nullptr, &in[0].v[static_cast<std::size_t>(r * cols)], r * cols,
                  visible(in[0].spec, r, a.causal), cols, static_cast<double>(a.scale));
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1]; };
  c.cost = [](const Problem& p) { return Cost{3.0 * static_cast<double>(p.out[0].size()), traffic(p)}; };
  c.patterns = all_patterns();
  list.push_back(c);

  c.name = "softmax_backward";
  c.formula = "dx = scale y (dy - sum(y dy)), y a softmax";
  c.inputs = {"y", "dy"}, c.outputs = {"dx"};
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p = softmax_problem(d, t, v, 2);
    p.in[0].role = Role::derived;
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t, const Problem& p,
                const std::function<double(std::int64_t)>& random) {
    const auto cols = in[0].dim(-1);
    for (std::int64_t i = 0; i < in[0].size(); ++i) in[0][i] = 6 * random(i) - 3;
    for (std::int64_t r = 0; r * cols < in[0].size(); ++r) {
      double* row = &in[0].v[static_cast<std::size_t>(r * cols)];
      softmax_row(nullptr, row, std::vector<double>(row, row + cols).data(), 0,
                  visible(in[0].spec, r, p.as<hpcdl_softmax_args>().causal), cols, 1);
    }
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
    const double s = static_cast<double>(p.as<hpcdl_softmax_args>().scale);
    const auto cols = in[0].dim(-1);
    for (std::int64_t begin = 0; begin < in[0].size(); begin += cols) {
      double dot = 0, scale = 0;
      for (std::int64_t i = begin; i < begin + cols; ++i)
        dot += in[0][i] * in[1][i], scale += std::fabs(in[0][i] * in[1][i]);
      for (std::int64_t i = begin; i < begin + cols; ++i) {
        const bool open = in[0][i] == 0 && !std::isfinite(dot);  // masked: 0 or 0 * NaN
        out[0].set(i, s * in[0][i] * (in[1][i] - dot),
                   open ? kAny : std::fabs(s * in[0][i]) * (std::fabs(in[1][i]) + 2 * scale));
      }
    }
  };
  list.push_back(c);
}

Problem cross_entropy_problem(const Dims& d, DType t) {
  Problem p;
  p.in = {{{{d[0], d[1]}, t}}, {{{d[0]}, DType::i32}, Role::index_or_none, d[1]}};
  p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
  return p;
}

double log_sum_exp(const Values& x, std::int64_t row, double* scale) {
  const auto n = x.dim(1);
  RowMax top;
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) top.take(x[row * n + c]);
  for (std::int64_t c = 0; c < n; ++c) sum += std::exp(x[row * n + c] - top.get());
  if (scale) *scale = 1 + std::fabs(top.get()) + std::log(static_cast<double>(n));
  return top.get() + std::log(sum);
}

void add_cross_entropy(std::vector<Contract>& list) {
  Contract c;
  c.name = "cross_entropy";
  c.formula = "loss = sum over rows with target >= 0 of logsumexp(x) - x[target]; count = number of those rows";
  c.inputs = {"logits", "targets"}, c.outputs = {"loss", "count"};
  c.dims = {{"rows", 1, 24}, {"vocabulary", 1, 600}};
  c.shapes = row_shapes();
  c.typical = {5, 131};
  c.timed = {256, 8192};
  c.problem = [](const Dims& d, DType t, int) { return cross_entropy_problem(d, t); };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    double loss = 0, scale = 0, count = 0;
    for (std::int64_t r = 0; r < in[1].size(); ++r) {
      if (in[1][r] < 0) continue;
      double s = 0;
      const double x = in[0][r * in[0].dim(1) + static_cast<std::int64_t>(in[1][r])];
      loss += log_sum_exp(in[0], r, &s) - x, scale += s + std::fabs(x), count += 1;
    }
    out[0].set(0, loss, scale);
    out[1].set(0, count, 0);
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[0] + p.in[0].spec[1]; };
  c.cost = [](const Problem& p) { return Cost{2.0 * static_cast<double>(p.in[0].spec.size()), traffic(p)}; };
  c.patterns = all_patterns();
  list.push_back(c);

  c.name = "cross_entropy_backward";
  c.formula = "dx = (exp(x - lse) - onehot(target)) dloss, 0 where target < 0; lse = logsumexp(x)";
  c.inputs = {"logits", "targets", "lse", "dloss"}, c.outputs = {"dlogits"};
  c.problem = [](const Dims& d, DType t, int) {
    Problem p = cross_entropy_problem(d, t);
    p.in.push_back({{{d[0]}, DType::f32}, Role::derived});
    p.in.push_back({{{1}, DType::f32}, Role::weight});
    p.out = {p.in[0].spec};
    return p;
  };
  c.derive = [](std::vector<Values>& in, std::size_t, const Problem&, const std::function<double(std::int64_t)>&) {
    for (std::int64_t r = 0; r < in[2].size(); ++r) in[2][r] = log_sum_exp(in[0], r, nullptr);
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    const auto n = in[0].dim(1);
    for (std::int64_t r = 0; r < in[1].size(); ++r)
      for (std::int64_t k = 0; k < n; ++k) {
        const auto i = r * n + k;
        const double lse = in[2][r], p = std::exp(in[0][i] - lse), hot = in[1][r] == static_cast<double>(k);
        if (in[1][r] < 0) out[0].set(i, 0, 0);
        else
          out[0].set(i, (p - hot) * in[3][0],
                     std::fabs(in[3][0]) * (p * (1 + std::fabs(in[0][i]) + std::fabs(lse)) + hot));
      }
  };
  c.reduction = [](const Problem&) { return std::int64_t{1}; };
  c.patterns.pop_back(), c.patterns.pop_back();  // infinities: lse itself is one, and nothing is defined
  list.push_back(c);
}

}  // namespace

void add_rows(std::vector<Contract>& list) {
  add_softmax(list);
  add_cross_entropy(list);
}

}  // namespace hpcdl::lab::verify::detail
