// Matrix products.

#include <algorithm>

#include "hpcdl/lab/verify/contract.h"
#include "hpcdl/lab/verify/products.h"
#include "hpcdl/ops/int4_linear/int4_layout.h"

namespace hpcdl::lab::verify::detail {
namespace {

std::vector<Dims> mnk_shapes() {
  return {{8, 16, 32}, {1, 1, 1},    {1, 7, 3},     {2, 2, 5},    {3, 5, 17},   {7, 13, 8},   {5, 16, 15},
          {6, 17, 16}, {15, 31, 7},  {16, 33, 64},  {17, 15, 65}, {1, 64, 129}, {33, 1, 40},  {13, 48, 100},
          {0, 5, 8},   {31, 65, 33}, {9, 130, 257}, {65, 66, 63}, {2, 3, 1500}, {70, 140, 96}};
}

Contract base(std::string_view name, std::string_view formula, std::vector<std::string_view> in,
              std::vector<std::string_view> out) {
  Contract c;
  c.name = name, c.formula = formula, c.inputs = std::move(in), c.outputs = std::move(out);
  c.dims = {{"M", 1, 40}, {"N", 1, 140}, {"K", 1, 140}};
  c.shapes = mnk_shapes();
  c.typical = {9, 35, 67};
  c.timed = {384, 384, 384};
  c.patterns = all_patterns();
  c.huge = 1e16;
  return c;
}

/// Variants: a b, scaled a b^T, a^T b, a batch of 3.
Problem matmul_problem(const Dims& d, DType t, int v) {
  Problem p;
  const auto m = d[0], n = d[1], k = d[2];
  Spec a{{m, k}, t}, b{{k, n}, t}, y{{m, n}, t};
  if (v == 1) b.shape = {n, k};
  if (v == 2) a.shape = {k, m};
  if (v == 3) a.shape = {3, m, k}, b.shape = {3, k, n}, y.shape = {3, m, n};
  p.in = {{a}, {b}}, p.out = {y};
  p.set_args(hpcdl_matmul_args{v == 2, v == 1, v == 1 ? 0.125f : 1.0f});
  return p;
}

void matmul_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto t = p.as<hpcdl_matmul_args>();
  const auto m = out[0].spec[-2], n = out[0].spec[-1], k = in[0].dim(t.transpose_a ? -2 : -1);
  const auto batch = in[0].spec.shape.rank() > 2 ? in[0].dim(0) : 1;
  for (std::int64_t s = 0; s < batch; ++s)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        Sum sum;
        for (std::int64_t l = 0; l < k; ++l)
          sum.add(in[0][s * m * k + (t.transpose_a ? l * m + i : i * k + l)] *
                  in[1][s * k * n + (t.transpose_b ? j * k + l : l * n + j)]);
        out[0].set((s * m + i) * n + j, static_cast<double>(t.scale) * sum.value,
                   static_cast<double>(t.scale) * sum.scale);
      }
}

void add_matmul(std::vector<Contract>& list) {
  auto c = base("matmul", "y = scale op(a) op(b), op transposing the last two dims where asked", {"a", "b"}, {"y"});
  c.variants = 4;
  c.problem = matmul_problem;
  c.reference = matmul_reference;
  c.reduction = [](const Problem& p) { return p.in[0].spec[p.as<hpcdl_matmul_args>().transpose_a ? -2 : -1]; };
  c.cost = [](const Problem& p) {
    return Cost{2.0 * static_cast<double>(p.out[0].size()) *
                    static_cast<double>(p.in[0].spec[p.as<hpcdl_matmul_args>().transpose_a ? -2 : -1]),
                traffic(p)};
  };
  list.push_back(c);

  c = base("matmul_add_relu", "y = relu(a b + bias); a (M, K), b (K, N), bias (N)", {"a", "b", "bias"}, {"y"});
  c.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}}, {{{d[2], d[1]}, t}}, {{{d[1]}, t}, Role::weight}};
    p.out = {{{d[0], d[1]}, t}};
    return p;
  };
  c.reference = [](std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
    const auto m = in[0].dim(0), k = in[0].dim(1), n = in[1].dim(1);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        Sum z;
        z.add(in[2][j]);
        for (std::int64_t l = 0; l < k; ++l) z.add(in[0][i * k + l] * in[1][l * n + j]);
        out[0].set(i * n + j, activated(HPCDL_ACT_RELU, z.value), z.scale);
      }
  };
  c.reduction = [](const Problem& p) { return p.in[0].spec[1] + 1; };
  c.cost = [](const Problem& p) {
    return Cost{2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[1]), traffic(p)};
  };
  list.push_back(c);
}

/// Variants: bias; W (K, N) and no bias; gelu in both forms, bias and residual.
Problem linear_problem(const Dims& d, DType t, int v) {
  Problem p;
  const auto m = d[0], n = d[1], k = d[2];
  p.in = {{{{m, k}, t}},
          {v == 1 ? Spec{{k, n}, t} : Spec{{n, k}, t}},
          v == 1 ? Input{} : Input{{{n}, t}, Role::weight},
          v >= 2 ? Input{{{m, n}, t}} : Input{}};
  p.out = {{{m, n}, t}};
  p.set_args(hpcdl_linear_args{v == 2 ? HPCDL_ACT_GELU_TANH : v == 3 ? HPCDL_ACT_GELU_ERF : HPCDL_ACT_NONE, v == 1});
  return p;
}

void linear_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto a = p.as<hpcdl_linear_args>();
  const auto m = in[0].dim(0), k = in[0].dim(1), n = out[0].spec[1];
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      Sum z;
      if (in[2]) z.add(in[2][j]);
      for (std::int64_t l = 0; l < k; ++l) z.add(in[0][i * k + l] * in[1][a.conv1d ? l * n + j : j * k + l]);
      const double y = activated(a.activation, z.value), r = in[3] ? in[3][i * n + j] : 0;
      const bool open = a.activation >= HPCDL_ACT_GELU_TANH && std::isinf(z.value);
      out[0].set(i * n + j, y + r, open ? kAny : 2 * z.scale + std::fabs(r));
    }
}

void linear_backward_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem&) {
  const Values &x = in[0], &w = in[1], &dy = in[2];
  const auto m = x.dim(0), k = x.dim(1), n = w.dim(0);
  const auto put = [](Expected& e, std::int64_t i, const Sum& s) { e.set(i, s.value, s.scale); };
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l) {
      Sum s;
      for (std::int64_t j = 0; j < n; ++j) s.add(dy[i * n + j] * w[j * k + l]);
      put(out[0], i * k + l, s);
    }
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t l = 0; l < k; ++l) {
      Sum s;
      for (std::int64_t i = 0; i < m; ++i) s.add(dy[i * n + j] * x[i * k + l]);
      put(out[1], j * k + l, s);
    }
    Sum s;
    for (std::int64_t i = 0; i < m; ++i) s.add(dy[i * n + j]);
    put(out[2], j, s);
  }
}

void add_linear(std::vector<Contract>& list) {
  auto c = base("linear",
                "y = act(x W^T + bias) + residual; W (N, K), or (K, N) with conv1d; bias and residual are optional",
                {"x", "weight", "bias", "residual"}, {"y"});
  c.variants = 4;
  c.huge = 1e4;  // gelu cubes
  c.problem = linear_problem;
  c.reference = linear_reference;
  c.reduction = [](const Problem& p) { return p.in[0].spec[1] + 2; };
  c.cost = [](const Problem& p) {
    return Cost{2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[1]), traffic(p)};
  };
  list.push_back(c);

  c = base("linear_backward",
           "dx = dy W, dweight = dy^T x, dbias = sum of dy over the rows; W (N, K); the fourth output is absent",
           {"x", "weight", "dy"}, {"dx", "dweight", "dbias", "dresidual"});
  c.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}}, {{{d[1], d[2]}, t}}, {{{d[0], d[1]}, t}}};
    p.out = {p.in[0].spec, p.in[1].spec, {{d[1]}, t}, {}};
    p.set_args(hpcdl_linear_args{HPCDL_ACT_NONE, 0});
    return p;
  };
  c.reference = linear_backward_reference;
  c.reduction = [](const Problem& p) { return std::max({p.in[0].spec[0], p.in[1].spec[0], p.in[1].spec[1]}); };
  c.cost = [](const Problem& p) {
    return Cost{4.0 * static_cast<double>(p.in[2].spec.size()) * static_cast<double>(p.in[0].spec[1]), traffic(p)};
  };
  list.push_back(c);
}

/// Dims: M, tiles of rows of W, groups. Variants: 8-bit inputs, asymmetric, exact with bias, activation and residual.
Problem int4_problem(const Dims& d, DType t, int v) {
  Problem p;
  const std::int64_t m = d[0], n = d[1], group = v == 1 ? 64 : 32, k = d[2] * group;
  const Input scale{int4::scale_spec(n, k, group), Role::positive};
  p.in = {{{{m, k}, t}},
          {int4::packed_spec(n, k), Role::index, 256},
          scale,
          v == 0 ? Input{} : Input{scale.spec, Role::weight},
          v == 2 ? Input{{{n}, t}, Role::weight} : Input{},
          v == 2 ? Input{{{m, n}, t}} : Input{}};
  p.out = {{{m, n}, t}};
  p.set_args(hpcdl_int4_args{v != 0, v == 2 ? HPCDL_ACT_SILU : HPCDL_ACT_NONE});
  return p;
}

/// The inputs of one row as the 8-bit path defines them, by the float operations of int4_linear.h.
std::vector<double> int4_inputs(const Values& x, std::int64_t row, std::int64_t group, bool exact) {
  const auto k = x.dim(1);
  std::vector<double> v(x.v.begin() + row * k, x.v.begin() + (row + 1) * k);
  for (std::int64_t g = 0; !exact && g < k; g += group) {
    float most = 0;
    for (auto i = g; i < g + group; ++i)
      most = std::max(most, std::fabs(static_cast<float>(v[static_cast<std::size_t>(i)])));
    const float per_step = most > 0 ? 127.0f / most : 0, step = most / 127.0f;
    for (auto i = g; i < g + group; ++i) {
      auto& e = v[static_cast<std::size_t>(i)];
      e = static_cast<double>(std::nearbyint(static_cast<float>(e) * per_step)) * static_cast<double>(step);
    }
  }
  return v;
}

void int4_reference(std::vector<Expected>& out, const std::vector<Values>& in, const Problem& p) {
  const auto a = p.as<hpcdl_int4_args>();
  const auto m = in[0].dim(0), k = in[0].dim(1), n = in[1].dim(0), groups = in[2].dim(1), group = k / groups;
  for (std::int64_t i = 0; i < m; ++i) {
    const auto x = int4_inputs(in[0], i, group, a.exact);
    for (std::int64_t j = 0; j < n; ++j) {
      const auto tile = j / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, n);
      Sum z;
      if (in[4]) z.add(in[4][j]);
      double scale = z.scale;
      for (std::int64_t l = 0; l < k; ++l) {
        const auto byte = static_cast<int>(in[1][int4::packed_at(tile, k) + int4::byte_of(rows, j - tile, l)]);
        const int q = int4::is_high(l) ? byte >> 4 : byte & 15;
        const auto at = int4::scale_at(tile, groups) + l / group * rows + j - tile;
        const double s = in[2][at], o = in[3] ? in[3][at] : 0, xl = x[static_cast<std::size_t>(l)];
        z.add(xl * (s * (q - 8) + o));
        scale += std::fabs(xl) * (16 * std::fabs(s) + std::fabs(o));  // sums of q and of 8 may be formed apart
      }
      const double r = in[5] ? in[5][i * n + j] : 0;
      out[0].set(i * n + j, activated(a.activation, z.value) + r, 2 * scale + std::fabs(r));
    }
  }
}

void add_int4(std::vector<Contract>& list) {
  auto c = base(
      "int4_linear",
      "y = act(x W^T + bias) + residual, W in 4 bits as int4_layout.h has it; offset, bias and residual are optional",
      {"x", "packed", "scale", "offset", "bias", "residual"}, {"y"});
  c.dims = {{"M", 1, 20}, {"N", 1, 70}, {"groups", 1, 6}};
  c.shapes = {{2, 16, 2}, {1, 1, 1},  {1, 15, 1}, {3, 17, 3},  {7, 31, 2},
              {8, 33, 5}, {9, 48, 4}, {0, 16, 2}, {1, 100, 9}, {13, 40, 7}};
  c.typical = {3, 33, 3};
  c.timed = {1, 4096, 64};
  c.variants = 3;
  c.patterns = {Pattern::positive, Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::offset, Pattern::huge};
  c.huge = 1e4;
  c.problem = int4_problem;
  c.reference = int4_reference;
  c.reduction = [](const Problem& p) { return p.in[0].spec[1] + 2; };
  c.cost = [](const Problem& p) {
    return Cost{2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[1]), traffic(p)};
  };
  list.push_back(c);
}

}  // namespace

void add_matrices(std::vector<Contract>& list) {
  add_matmul(list);
  add_linear(list);
  add_int4(list);
}

}  // namespace hpcdl::lab::verify::detail
