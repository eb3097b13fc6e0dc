#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/matmul/matmul.h"

namespace hpcdl::contract {

/// Sizes of products (M, N, K).
inline void set_product_sizes(Contract& c) {
  c.dims = {{"M", 1, 40}, {"N", 1, 140}, {"K", 1, 140}};
  c.shapes = {{8, 16, 32}, {1, 1, 1},    {1, 7, 3},     {2, 2, 5},    {3, 5, 17},   {7, 13, 8},   {5, 16, 15},
              {6, 17, 16}, {15, 31, 7},  {16, 33, 64},  {17, 15, 65}, {1, 64, 129}, {33, 1, 40},  {13, 48, 100},
              {0, 5, 8},   {31, 65, 33}, {9, 130, 257}, {65, 66, 63}, {2, 3, 1500}, {70, 140, 96}};
  c.typical = {9, 35, 67};
  c.rows = "M";
  // Few elements of B, many, several blocks of K; a GPU divides K for its tiles where there are few columns.
  c.row_shapes = {{1, 35, 67}, {1, 150, 130}, {1, 20, 2100}, {1, 136, 264}, {1, 72, 1048}};
  c.timed = {384, 384, 384};
  c.patterns = all_patterns();
}

/// The depth of op(a).
inline std::int64_t matmul_depth(const Spec& a, bool transposed) { return a[transposed ? -2 : -1]; }

/// b may be a single matrix for a batch.
inline void matmul_reference(Outputs out, Inputs in, const Matmul::Args& t) {
  const auto m = out[0].spec[-2], n = out[0].spec[-1], k = matmul_depth(in[0].spec, t.transpose_a);
  const double scale = static_cast<double>(t.scale);
  for (std::int64_t at = 0; at < out[0].spec.size(); ++at) {
    const auto s = at / (m * n), i = at / n % m, j = at % n, b = in[1].spec.shape.rank() == 2 ? 0 : s * k * n;
    Sum sum;
    for (std::int64_t l = 0; l < k; ++l)
      sum.add(in[0][s * m * k + (t.transpose_a ? l * m + i : i * k + l)] *
              in[1][b + (t.transpose_b ? j * k + l : l * n + j)]);
    out[0].set(at, scale * sum.value, scale * sum.scale);
  }
}

/// Variants: a b, scaled a b^T, a^T b, a batch of 3.
inline Problem matmul_problem(const Dims& d, DType t, int v) {
  Problem p;
  const auto m = d[0], n = d[1], k = d[2];
  Spec a{{m, k}, t}, b{{k, n}, t}, y{{m, n}, t};
  if (v == 1) b.shape = {n, k};
  if (v == 2) a.shape = {k, m};
  if (v == 3) a.shape = {3, m, k}, b.shape = {3, k, n}, y.shape = {3, m, n};
  p.in = {{a}, {b}}, p.out = {y};
  const Matmul::Args args{.transpose_a = v == 2, .transpose_b = v == 1, .scale = v == 1 ? 0.125f : 1.0f};
  p.set_args(hpcdl_matmul_args{args.transpose_a, args.transpose_b, args.scale}, args);
  return p;
}

inline Contracts matmul_contracts() {
  auto c =
      of<Matmul>("matmul", "y = scale op(a) op(b), op transposing the last two dims where asked", {"a", "b"}, {"y"});
  set_product_sizes(c);
  c.huge = 1e16;
  c.variants = 4;
  c.problem = matmul_problem;
  c.reference = with_args<Matmul::Args>(matmul_reference);
  c.reduction = [](const Problem& p) { return matmul_depth(p.in[0].spec, p.as<Matmul::Args>().transpose_a); };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.out[0].size()) *
           static_cast<double>(matmul_depth(p.in[0].spec, p.as<Matmul::Args>().transpose_a));
  };
  return {c};
}

inline void matmul_cases(auto& to) {
  to.add("matmul", "MxNxK", {"a MK", "b KN"}, {{1024, 3072, 768}, {1024, 1024, 1024}}, [](const auto& v) {
      return matmul(v[0], v[1], {});
    }).forward_shapes = {{4096, 4096, 4096}, {1, 16384, 8192}};
  to.add("matmul+nt", "MxNxK", {"a MK", "b NK"}, {}, [](const auto& v) {
      return matmul(v[0], v[1], {.transpose_b = true});
    }).forward_shapes = {{1024, 3072, 768}, {256, 50304, 768}};
  to.add("matmul+tn", "MxNxK", {"a KM", "b KN"}, {}, [](const auto& v) {
      return matmul(v[0], v[1], {.transpose_a = true});
    }).forward_shapes = {{3072, 768, 1024}};
}

}  // namespace hpcdl::contract
