// Embedding, the gradient norm, the optimizer.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify::detail {
namespace {

void add_embedding(std::vector<Contract>& list) {
  Contract c;
  c.name = "embedding";
  c.formula = "y[t] = table[ids[t]] + positions[t]; positions is optional";
  c.inputs = {"table", "ids", "positions"}, c.outputs = {"y"};
  c.dims = {{"vocabulary", 1, 90}, {"tokens", 1, 70}, {"width", 1, 140}};
  c.shapes = {{9, 8, 16}, {1, 1, 1},     {2, 3, 1}, {5, 7, 3},    {40, 13, 15}, {3, 64, 17},
              {7, 5, 33}, {100, 31, 63}, {4, 0, 8}, {17, 2, 130}, {300, 90, 96}};
  c.typical = {17, 29, 45};
  c.timed = {2000, 1024, 768};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}},
            {{{d[1]}, DType::i32}, Role::index, d[0]},
            v == 1 ? Input{{{d[1] + 2, d[2]}, t}, Role::weight} : Input{}};
    p.out = {{{d[1], d[2]}, t}};
    return p;
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    const auto n = in[0].dim(1);
    for (std::int64_t t = 0; t < in[1].size(); ++t)
      for (std::int64_t k = 0; k < n; ++k) {
        const double x = in[0][static_cast<std::int64_t>(in[1][t]) * n + k], pos = in[2] ? in[2][t * n + k] : 0;
        out[0].set(t * n + k, x + pos, std::fabs(x) + std::fabs(pos));
      }
  };
  c.reduction = [](const Problem&) { return std::int64_t{1}; };
  c.cost = [](const Problem& p) { return Cost{0, 2.0 * static_cast<double>(p.out[0].bytes())}; };
  c.patterns = all_patterns();
  list.push_back(c);

  c.name = "embedding_backward";
  c.formula =
      "dtable[v] = sum of dy[t] over the tokens with ids[t] = v, 0 where there is none; the second output is absent";
  c.inputs = {"ids", "dy"}, c.outputs = {"dtable", "dpositions"};
  c.variants = 1;
  c.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[1]}, DType::i32}, Role::index, d[0]}, {{{d[1], d[2]}, t}}};
    p.out = {{{d[0], d[2]}, t}, {}};
    return p;
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    const auto n = in[1].dim(1);
    std::fill(out[0].value.begin(), out[0].value.end(), 0);
    for (std::int64_t t = 0; t < in[0].size(); ++t)
      for (std::int64_t k = 0; k < n; ++k) {
        const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(in[0][t]) * n + k);
        out[0].value[at] += in[1][t * n + k], out[0].scale[at] += std::fabs(in[1][t * n + k]);
        out[0].stored[at] = std::fabs(out[0].value[at]);
      }
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[0]; };
  list.push_back(c);
}

void add_grad_norm(std::vector<Contract>& list) {
  Contract c;
  c.name = "grad_norm";
  c.formula = "norm = |grad_scale| sqrt(sum of squares); clip = min(1, max_norm / (norm + 1e-6))";
  c.inputs = {"gradient"}, c.outputs = {"norm", "clip"};
  c.dims = {{"elements", 1, 20000}};
  c.shapes = {{64}, {1}, {2}, {7}, {15}, {16}, {17}, {63}, {65}, {129}, {1023}, {0}, {8191}, {8192}, {8193}, {40000}};
  c.typical = {8200};
  c.timed = {1 << 20};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    p.in = {{{{d[0]}, t}}};
    p.out = {{{1}, DType::f32}, {{1}, DType::f32}};
    p.set_args(hpcdl_grad_norm_args{v == 1 ? 0.25f : 1.0f, v == 1 ? 1e6f : 0.5f});
    return p;
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
    const auto a = p.as<hpcdl_grad_norm_args>();
    double squares = 0;
    for (double g : in[0].v) squares += g * g;
    const double norm = static_cast<double>(a.grad_scale) * std::sqrt(squares),
                 clip = std::min(1.0, static_cast<double>(a.max_norm) / (norm + 1e-6));
    out[0].set(0, norm, norm);
    out[1].set(0, clip, std::isfinite(norm) ? clip : kAny);
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[0]; };
  c.cost = [](const Problem& p) { return Cost{2.0 * static_cast<double>(p.in[0].spec.size()), traffic(p)}; };
  // Squares below the range of a float are lost: tiny and denormal gradients have norm 0.
  c.patterns = {Pattern::positive, Pattern::huge, Pattern::offset,  Pattern::constant, Pattern::zero,
                Pattern::mixed,    Pattern::nan,  Pattern::pos_inf, Pattern::neg_inf};
  c.huge = 1e15;
  list.push_back(c);
}

void adamw_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto a = p.as<hpcdl_adamw_args>();
  const auto t = static_cast<double>(a.step + 1);
  const double b1 = static_cast<double>(a.beta1), b2 = static_cast<double>(a.beta2), lr = static_cast<double>(a.lr);
  const double c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    const double g = in[1][i] * static_cast<double>(a.grad_scale);
    const double m = b1 * in[2][i] + (1 - b1) * g, v = b2 * in[3][i] + (1 - b2) * g * g,
                 m_abs = std::fabs(b1 * in[2][i]) + std::fabs((1 - b1) * g);
    const double keep = in[0][i] * (1 - lr * static_cast<double>(a.weight_decay)),
                 root = std::sqrt(v / c2) + static_cast<double>(a.eps);
    // 1 - beta^t may come from a float power: its error is relative to 1.
    const double step = lr * m / c1 / root, noise = lr * m_abs / c1 / root * (1 + 1 / c1 + 1 / c2);
    out[0].set(i, keep - step, std::fabs(in[0][i]) + noise);
    out[1].set(i, m, m_abs);
    out[2].set(i, v, v);
  }
}

void add_adamw(std::vector<Contract>& list) {
  Contract c;
  c.name = "adamw";
  c.formula =
      "g = gradient grad_scale; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p = p (1 - lr "
      "weight_decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps), t = step + 1; "
      "results go to outputs of their own";
  c.inputs = {"p", "gradient", "m", "v"}, c.outputs = {"p", "m", "v"};
  c.dims = {{"elements", 1, 20000}};
  c.shapes = {{64}, {1}, {2}, {7}, {15}, {16}, {17}, {63}, {65}, {129}, {1023}, {0}, {8191}, {8193}, {20011}};
  c.typical = {8200};
  c.timed = {1 << 19};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    const Spec s{{d[0]}, t}, f{{d[0]}, DType::f32};
    p.in = {{s, Role::weight}, {s}, {f, Role::weight}, {f, Role::positive}};
    p.out = {s, f, f};
    p.set_args(
        hpcdl_adamw_args{0.01f, 0.9f, v == 1 ? 0.999f : 0.95f, 1e-8f, 0.1f, v == 1 ? 0.5f : 1.0f, v == 1 ? 0 : 6});
    return p;
  };
  c.reference = adamw_reference;
  c.reduction = [](const Problem&) { return std::int64_t{4}; };
  c.cost = [](const Problem& p) { return Cost{10.0 * static_cast<double>(p.in[0].spec.size()), traffic(p)}; };
  c.patterns = {Pattern::positive, Pattern::huge, Pattern::tiny,  Pattern::offset,
                Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::nan};
  list.push_back(c);
}

}  // namespace

void add_others(std::vector<Contract>& list) {
  add_embedding(list);
  add_grad_norm(list);
  add_adamw(list);
}

}  // namespace hpcdl::lab::verify::detail
