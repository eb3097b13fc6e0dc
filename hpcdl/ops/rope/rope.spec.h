#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/rope/rope.h"

namespace hpcdl::contract {

/// positions may be absent; sign -1: the inverse rotation. Heads of `depth` elements; 0: those of the table.
inline void rope_reference(Expected& out, const Values& x, const Values& table, const Values& positions, double sign,
                           std::int64_t depth = 0) {
  if (x.size() == 0) return;
  const auto rotated = table.dim(1), half = rotated / 2, tokens = x.dim(1), width = x.size() / (x.dim(0) * tokens);
  if (depth == 0) depth = x.spec.shape.rank() == 4 ? x.dim(3) : rotated;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto row = i / width, k = i % depth, t = positions ? static_cast<std::int64_t>(positions[row]) : row % tokens;
    if (k >= rotated) {
      out.set(i, x[i], 0);
      continue;
    }
    const double c = table[t * rotated + k % half], s = sign * table[t * rotated + half + k % half];
    Sum sum;
    sum.add(x[i] * c), sum.add(k < half ? -x[i + half] * s : x[i - half] * s);
    sum.put(out, i);
  }
}

/// The usual table.
inline void set_angles(Values& table) {
  const auto depth = table.dim(1), half = depth / 2;
  for (std::int64_t k = 0; k < table.size(); ++k) {
    const double angle = static_cast<double>(k / depth) *
                         std::pow(10000.0, -2.0 * static_cast<double>(k % half) / static_cast<double>(depth));
    table[k] = k % depth < half ? std::cos(angle) : std::sin(angle);
  }
}

/// dims: batch, tokens, half a head. Two heads.
inline Problem rope_problem(const Dims& d, DType t, bool backward) {
  Problem p;
  const auto depth = 2 * d[2];
  const Input x{{{d[0], d[1], 2 * depth}, t}}, table{{{d[1] + 3, depth}, DType::f32}, Role::derived};
  p.in = backward ? std::vector<Input>{table, x} : std::vector<Input>{x, table, Input()};
  p.out = {x.spec};
  p.set_args(hpcdl_rope_args{depth}, Rope::Args{depth});
  return p;
}

inline Contracts rope_contracts() {
  auto c = of<Rope>("rope",
                    "(x[i], x[i + D/2]) of every head rotated by the angle whose cosine and sine are in row t of table "
                    "(P, D): D/2 cosines, then D/2 sines; row positions[t] where there are positions",
                    {"x", "table", "positions"}, {"y"});
  c.dims = {{"batch", 1, 2}, {"tokens", 1, 40}, {"half", 1, 70}};
  c.shapes = {{1, 4, 16},  {1, 1, 1},  {2, 3, 1},  {1, 7, 3}, {2, 5, 8},  {1, 2, 15},
              {1, 13, 16}, {1, 3, 17}, {2, 2, 33}, {0, 4, 4}, {1, 33, 64}};
  c.typical = {2, 5, 19};
  c.rows = "batch";
  c.timed = {1, 1024, 256};
  c.problem = [](const Dims& d, DType t, int) { return rope_problem(d, t, false); };
  c.derive = [](std::vector<Values>& in, std::size_t i, const Problem&, const std::function<double(std::int64_t)>&) {
    set_angles(in[i]);
  };
  c.reference = with_args<Rope::Args>(
      [](Outputs out, Inputs in, const Rope::Args& a) { rope_reference(out[0], in[0], in[1], in[2], 1, a.head_dim); });
  c.reduction = [](const Problem&) { return std::int64_t{2}; };
  c.flops = flops_per_result(3);
  c.patterns = all_patterns();

  auto b = backward_of(c, "rope_backward", "the inverse rotation of dy", {"table", "dy"}, {"dx"});
  b.problem = [](const Dims& d, DType t, int) { return rope_problem(d, t, true); };
  b.reference = with_args<Rope::Args>(
      [](Outputs out, Inputs in, const Rope::Args& a) { rope_reference(out[0], in[1], in[0], {}, -1, a.head_dim); });
  return {c, b};
}

inline void rope_cases(auto& to) {
  to.add("rope", "BxTxHxD", {"x BTHD", "table TD f32"}, {{8, 2048, 32, 128}, {1, 1024, 12, 64}},
         [](const auto& v) { return rope(v[0], v[1]); });
}

}  // namespace hpcdl::contract
