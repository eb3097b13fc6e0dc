#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/embedding/embedding.h"

namespace hpcdl::contract {

inline void embedding_reference(Outputs out, Inputs in, const Embedding::Args&) {
  const auto n = in[0].dim(1), per = in[1].dim(-1);
  for (std::int64_t t = 0; t < in[1].size(); ++t)
    for (std::int64_t k = 0; k < n; ++k) {
      Sum y;
      y.add(in[0][static_cast<std::int64_t>(in[1][t]) * n + k]);
      if (in[2]) y.add(in[2][(in[3] ? static_cast<std::int64_t>(in[3][t]) : t % per) * n + k]);
      y.put(out[0], t * n + k);
    }
}

/// dtable, dpositions
inline void embedding_backward_reference(Outputs out, Inputs in, const Embedding::Args&) {
  const auto n = in[1].dim(-1), per = in[0].dim(-1);
  for (std::int64_t t = 0; t < in[0].size(); ++t)
    for (std::int64_t k = 0; k < n; ++k) {
      out[0].add(static_cast<std::int64_t>(in[0][t]) * n + k, in[1][t * n + k]);
      out[1].add(t % per * n + k, in[1][t * n + k]);
    }
}

inline Contracts embedding_contracts() {
  auto c = of<Embedding>(
      "embedding", "y[t] = table[ids[t]] + positions[t], or + positions[places[t]]; positions and places are optional",
      {"table", "ids", "positions", "places"}, {"y"});
  c.dims = {{"vocabulary", 1, 90}, {"tokens", 1, 70}, {"width", 1, 140}};
  c.shapes = {{9, 8, 16}, {1, 1, 1},     {2, 3, 1}, {5, 7, 3},    {40, 13, 15}, {3, 64, 17},
              {7, 5, 33}, {100, 31, 63}, {4, 0, 8}, {17, 2, 130}, {300, 90, 96}};
  c.typical = {17, 29, 45};
  c.rows = "tokens";
  c.row_alone = [](const Dims& many, int variant, std::int64_t) {  // variant 1: a token depends on its position
    return variant == 1 ? Dims() : Dims{many[0], 1, many[2]};
  };
  c.timed = {2000, 1024, 768};
  c.variants = 2;
  c.problem = [](const Dims& d, DType t, int v) {
    Problem p;
    p.in = {{{{d[0], d[2]}, t}},
            {{{d[1]}, DType::i32}, Role::index, d[0]},
            v == 1 ? Input{{{d[1] + 2, d[2]}, t}, Role::weight} : Input{},
            Input{}};
    p.out = {{{d[1], d[2]}, t}};
    return p;
  };
  c.reference = with_args<Embedding::Args>(embedding_reference);
  c.flops = flops_per_result(0);
  c.bytes = [](const Problem& p) { return 2.0 * static_cast<double>(p.out[0].bytes()); };
  c.patterns = all_patterns();

  auto b = backward_of(
      c, "embedding_backward",
      "dtable[v] = sum of dy[t] over the tokens with ids[t] = v, 0 where there is none; the second output is absent",
      {"ids", "dy"}, {"dtable", "dpositions"});
  b.variants = 1;
  b.rows = kNoRows;
  b.problem = [](const Dims& d, DType t, int) {
    Problem p;
    p.in = {{{{d[1]}, DType::i32}, Role::index, d[0]}, {{{d[1], d[2]}, t}}};
    p.out = {{{d[0], d[2]}, t}, {}};
    return p;
  };
  b.reference = with_args<Embedding::Args>(embedding_backward_reference);
  b.reduction = [](const Problem& p) { return p.in[0].spec.size(); };
  return {c, b};
}

inline void embedding_cases(auto& to) {
  to.add("embedding", "VxCxT", {"table VC", "ids T<V"}, {{50304, 768, 65536}, {50304, 768, 1024}},
         [](const auto& v) { return embedding(v[0], v[1]); });
}

}  // namespace hpcdl::contract
