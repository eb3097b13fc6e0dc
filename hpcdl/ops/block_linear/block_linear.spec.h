#pragma once

#include "hpcdl/ops/block_linear/block_linear.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

/// The place of output o of block b in a row of y.
inline std::int64_t block_column(std::int64_t b, std::int64_t o, std::int64_t blocks, std::int64_t outputs,
                                 std::int64_t groups) {
  const auto size = outputs / groups;
  return (o / size * blocks + b) * size + o % size;
}

inline void block_linear_reference(Outputs out, Inputs in, const BlockLinear::Args& a) {
  const Values &x = in[0], &w = in[1];
  const auto blocks = w.dim(0), outputs = w.dim(1), inputs = w.dim(2), width = blocks * outputs;
  const auto rows = width > 0 ? out[0].spec.size() / width : 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t b = 0; b < blocks; ++b)
      for (std::int64_t o = 0; o < outputs; ++o) {
        const auto column = block_column(b, o, blocks, outputs, a.groups);
        Sum sum;
        if (in[2]) sum.add(in[2][column]);
        if (in[3]) sum.add(in[3][r * width + column]);
        for (std::int64_t c = 0; c < inputs; ++c)
          sum.add(w[(b * outputs + o) * inputs + c] * x[(r * blocks + b) * inputs + c]);
        sum.put(out[0], r * width + column);
      }
}

/// dx, dweight, dbias and dresidual.
inline void block_linear_backward_reference(Outputs out, Inputs in, const BlockLinear::Args& a) {
  const Values &x = in[0], &w = in[1], &dy = in[2];
  const auto blocks = w.dim(0), outputs = w.dim(1), inputs = w.dim(2), width = blocks * outputs;
  const auto rows = width > 0 ? dy.size() / width : 0;
  const auto slope = [&](std::int64_t r, std::int64_t b, std::int64_t o) {
    return dy[r * width + block_column(b, o, blocks, outputs, a.groups)];
  };
  for (std::int64_t b = 0; b < blocks; ++b)
    for (std::int64_t c = 0; c < inputs; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        Sum sum;
        for (std::int64_t o = 0; o < outputs; ++o) sum.add(slope(r, b, o) * w[(b * outputs + o) * inputs + c]);
        sum.put(out[0], (r * blocks + b) * inputs + c);
      }
      for (std::int64_t o = 0; o < outputs; ++o) {
        Sum sum;
        for (std::int64_t r = 0; r < rows; ++r) sum.add(slope(r, b, o) * x[(r * blocks + b) * inputs + c]);
        sum.put(out[1], (b * outputs + o) * inputs + c);
      }
    }
  for (std::int64_t i = 0; i < dy.size(); ++i) out[2].add(i % width, dy[i]), out[3].set(i, dy[i], 0);
}

/// Sizes (rows, blocks, outputs and inputs of a block). Variants: one group; with two groups, bias and residual; with as
/// many groups as outputs and a bias.
inline Contracts block_linear_contracts() {
  auto c = of<BlockLinear>("block_linear",
                           "y = x W^T + bias + residual for a block-diagonal W (B, Q, P), outputs of the blocks "
                           "interleaved in groups; bias and residual are optional",
                           {"x", "weight", "bias", "residual"}, {"y"});
  c.dims = {{"M", 1, 20}, {"B", 1, 9}, {"Q", 1, 40}, {"P", 1, 40}};
  c.shapes = {{3, 2, 4, 5}, {1, 1, 2, 1}, {7, 3, 6, 17},   {2, 5, 34, 33}, {16, 4, 16, 16}, {9, 2, 66, 31},
              {0, 2, 4, 3}, {5, 7, 2, 1}, {33, 2, 18, 40}, {6, 8, 4, 4},   {1, 4, 130, 65}, {70, 2, 32, 19}};
  c.typical = {9, 3, 34, 35};
  c.rows = "M";
  c.row_shapes = {{1, 3, 34, 67}, {1, 2, 66, 130}, {1, 16, 4, 4}};
  c.timed = {384, 4, 192, 384};
  c.patterns = all_patterns();
  c.huge = 1e16, c.variants = 3;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    const auto rows = d[0], blocks = d[1], outputs = d[2] + d[2] % 2, inputs = d[3];
    const Spec y{{rows, blocks * outputs}, t};
    p.in = {{{{rows, blocks * inputs}, t}},
            {{{blocks, outputs, inputs}, t}},
            v > 0 ? Input{{{y[-1]}, t}, Role::weight} : Input{},
            v == 1 ? Input{y} : Input{}};
    p.out = {y};
    p.set_args(std::int64_t{}, BlockLinear::Args{v == 0 ? 1 : v == 1 ? 2 : outputs});
    return p;
  };
  c.reference = with_args<BlockLinear::Args>(block_linear_reference);
  c.reduction = [](const Problem& p) { return p.in[1].spec[-1] + 2; };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.out[0].size()) * static_cast<double>(p.in[1].spec[-1]);
  };
  auto b = backward_of(c, "block_linear_backward",
                       "dx, dweight, dbias and dresidual of block_linear; the fourth output is absent",
                       {"x", "weight", "dy"}, {"dx", "dweight", "dbias", "dresidual"});
  b.variants = 2;
  b.problem = [forward = c.problem](const Dims& d, DType t, int v) {
    const Problem f = forward(d, t, 2 * v);
    Problem p;
    p.in = {f.in[0], f.in[1], {f.out[0]}};
    p.out = {f.in[0].spec, f.in[1].spec, {{f.out[0][-1]}, t}, {}};
    p.set_args(std::int64_t{}, f.as<BlockLinear::Args>());
    return p;
  };
  b.reference = with_args<BlockLinear::Args>(block_linear_backward_reference);
  b.reduction = [](const Problem& p) {
    const Spec &x = p.in[0].spec, &w = p.in[1].spec;
    return std::max({x.size() / std::max<std::int64_t>(x[-1], 1), w[1], w[2]});
  };
  b.flops = [](const Problem& p) {
    return 4.0 * static_cast<double>(p.in[2].spec.size()) * static_cast<double>(p.in[1].spec[-1]);
  };
  return {c, b};
}

/// The two halves of a Monarch matrix (4096, 4096) of a third of its size, and of one for an MLP.
inline void block_linear_cases(auto& to) {
  to.add("block_linear", "MxBxQxP", {"x M(BP)", "w BQP"}, {{1024, 4, 680, 1024}, {1024, 4, 1024, 680}},
         [](const auto& v) { return block_linear(v[0], v[1], {}); })
      .forward_shapes = {{16, 4, 680, 1024}};
  to.add("block_linear+groups", "MxBxQxP", {"x M(BP)", "w BQP"}, {{1024, 4, 680, 1024}},
         [](const auto& v) { return block_linear(v[0], v[1], {.groups = v.dim('Q') % 4 == 0 ? 4 : 1}); });
}

}  // namespace hpcdl::contract
