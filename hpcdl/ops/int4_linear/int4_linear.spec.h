#pragma once

#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/matrix.h"

namespace hpcdl::contract {

inline double activated(Int4Activation a, double v) {
  switch (a) {
    case Int4Activation::relu: return relu(v);
    case Int4Activation::gelu: return gelu_tanh(v);
    case Int4Activation::gelu_erf: return gelu_erf(v);
    case Int4Activation::silu: return silu(v);
    default: return v;
  }
}

/// The inputs of one row as the 8-bit path defines them, by the float operations of int4_linear.h.
inline std::vector<double> int4_inputs(const Values& x, std::int64_t row, std::int64_t k, std::int64_t group,
                                       bool exact) {
  std::vector<double> v(x.v.begin() + row * k, x.v.begin() + (row + 1) * k);
  for (std::int64_t g = 0; !exact && g < k; g += group) {
    const std::span part(&v[static_cast<std::size_t>(g)], static_cast<std::size_t>(group));
    float most = 0;
    for (double e : part) most = std::max(most, std::fabs(static_cast<float>(e)));
    const float per_step = most > 0x1p-100f ? 127.0f / most : 0, step = most / 127.0f;
    for (double& e : part)
      e = static_cast<double>(std::nearbyint(static_cast<float>(e) * per_step)) * static_cast<double>(step);
  }
  return v;
}

/// Weight (row, k) as int4_layout.h defines it: value, and what its parts come to where they are summed apart.
struct Int4Weight {
  double value, size;
  operator double() const { return value; }
};
inline Int4Weight int4_weight(const Values& packed, const Values& scale, const Values& offset, std::int64_t row,
                              std::int64_t k) {
  const auto n = packed.dim(0), depth = 2 * packed.dim(1), groups = scale.dim(1);
  const auto tile = row / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, n);
  const auto byte = static_cast<int>(packed[int4::packed_at(tile, depth) + int4::byte_of(rows, row - tile, k)]);
  const int q = int4::is_high(k) ? byte >> 4 : byte & 15;
  const auto at = int4::scale_at(tile, groups) + k / (depth / groups) * rows + row - tile;
  const double o = offset ? offset[at] : 0;
  return {scale[at] * (q - 8) + o, 16 * std::fabs(scale[at]) + std::fabs(o)};
}

/// `widened`: as GPUs compute many rows of bf16: x is not rounded, weights are rounded to bf16.
inline void int4_reference_of(Outputs out, Inputs in, const Int4Linear::Args& a, bool widened) {
  const auto n = in[1].dim(0), k = 2 * in[1].dim(1), m = in[0].size() / k;
  for (std::int64_t i = 0; i < m; ++i) {
    const auto x = int4_inputs(in[0], i, k, k / in[2].dim(1), a.exact || widened);
    for (std::int64_t j = 0; j < n; ++j) {
      Sum z;
      if (in[4]) z.add(in[4][j]);
      double scale = z.scale;
      for (std::int64_t l = 0; l < k; ++l) {
        const auto w = int4_weight(in[1], in[2], in[3], j, l);
        const double factor =
            widened ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(w.value)))) : w.value;
        z.add(x[static_cast<std::size_t>(l)] * factor);
        scale += std::fabs(x[static_cast<std::size_t>(l)]) * w.size;
      }
      const double r = in[5] ? in[5][i * n + j] : 0;
      out[0].set(i * n + j, activated(a.activation, z.value) + r, 2 * scale + std::fabs(r));
    }
  }
}

inline void int4_reference(Outputs out, Inputs in, const Int4Linear::Args& a) { int4_reference_of(out, in, a, false); }

/// Dims: M, tiles of rows of W, groups. Variants: 8-bit inputs, asymmetric, exact with bias, activation and residual.
inline Problem int4_problem(const Dims& d, DType t, int v) {
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
  p.set_args(hpcdl_int4_args{v != 0, v == 2 ? HPCDL_ACT_SILU : HPCDL_ACT_NONE},
             Int4Linear::Args{.exact = v != 0, .activation = v == 2 ? Int4Activation::silu : Int4Activation::none});
  return p;
}

inline Contracts int4_linear_contracts() {
  auto c = of<Int4Linear>(
      "int4_linear",
      "y = act(x W^T + bias) + residual, W in 4 bits as int4_layout.h has it; offset, bias and residual are optional",
      {"x", "packed", "scale", "offset", "bias", "residual"}, {"y"});
  c.dims = {{"M", 1, 20}, {"N", 1, 70}, {"groups", 1, 6}};
  c.shapes = {{2, 16, 2}, {1, 1, 1},  {1, 15, 1}, {3, 17, 3},  {7, 31, 2},
              {8, 33, 5}, {9, 48, 4}, {0, 16, 2}, {1, 100, 9}, {13, 40, 7}};
  c.typical = {3, 33, 3};
  c.rows = "M";
  c.timed = {1, 4096, 64};
  c.variants = 3;
  c.patterns = {Pattern::positive, Pattern::constant, Pattern::zero, Pattern::mixed, Pattern::offset, Pattern::huge};
  c.problem = int4_problem;
  c.reference = with_args<Int4Linear::Args>(int4_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1] + 2; };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[0].spec[-1]);
  };
  return {c};
}

/// (N, K) in INT4, as inputs of these names.
auto int4_matrix(const auto& v, const std::string& name, const std::string& scale, std::int64_t n, std::int64_t k,
                 std::int64_t group) {
  const auto packed = v.graph.input(name, int4::packed_spec(n, k));
  return Matrix<std::remove_const_t<decltype(packed)>>{
      packed, v.graph.input(scale, int4::scale_spec(n, k, group)), {}, {}};
}

inline void int4_linear_cases(auto& to) {
  const auto product = [&](const char* op, bool exact, std::vector<Shape> shapes) {
    auto& family = to.add_forward(op, "MxNxK", {"x MK"}, std::move(shapes), [exact](const auto& v) {
      const auto w = int4_matrix(v, "packed", "scale", v.dim('N'), v.dim('K'), 32);
      return int4_linear(v[0], w.w, w.scale, v.none(), v.none(), v.none(), {.exact = exact, .constant_weights = true});
    });
    family.nearest_supported = [](Shape s) {
      s[0] = std::min<std::int64_t>(s[0], 512), s[2] = (s[2] + 31) / 32 * 32;  // tokens at a time; whole groups
      return s;
    };
  };
  product("int4_linear", false, {{1, 131072, 4096}, {1, 4096, 4096}, {8, 4096, 4096}, {64, 4096, 4096}});
  product("int4_linear+exact", true, {{1, 131072, 4096}, {1, 4096, 4096}});
}

}  // namespace hpcdl::contract
