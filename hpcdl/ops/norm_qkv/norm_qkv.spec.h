#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.spec.h"
#include "hpcdl/ops/rope/rope.spec.h"
#include "hpcdl/stream.h"

namespace hpcdl::contract {

/// The op on dense matrices as a function of its operands, whose results hold the pools, too.
struct NormQkvCall {
  static constexpr std::string_view name = "norm_qkv_call";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0;
  using Args = NormQkv::Args;
  static std::array<Spec, 3> infer(const Spec& x, const Spec& gamma, const Spec& table, const Spec& positions,
                                   const Spec& slots, const Spec& wq, const Spec& bq, const Spec& wk, const Spec& bk,
                                   const Spec& wv, const Spec& bv, const Spec& keys, const Spec& values,
                                   const Args& a) {
    const Matrix<Spec> m[] = {{wq, {}, {}, bq}, {wk, {}, {}, bk}, {wv, {}, {}, bv}};
    return {NormQkv::checked(x, gamma, table, {positions, slots}, m, keys, values, a), keys, values};
  }
  static std::array<Spec, 3> scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&, const Spec&,
                                     const Spec&, const Spec& wk, const Spec& bk, const Spec& wv, const Spec& bv,
                                     const Spec&, const Spec&, const Args&) {
    return {x, matrix_spec(name, x, {wk, {}, {}, bk}), matrix_spec(name, x, {wv, {}, {}, bv})};
  }
  static void forward(Stream& s, Tensor q, Tensor keys, Tensor values, View x, View gamma, View table, View positions,
                      View slots, View wq, View bq, View wk, View bk, View wv, View bv, View keys_before,
                      View values_before, Tensor h, Tensor k, Tensor v, const Args& a) {
    copy(s, keys, keys_before), copy(s, values, values_before);
    const Matrix<View> m[] = {{wq, {}, {}, bq}, {wk, {}, {}, bk}, {wv, {}, {}, bv}};
    const Tensor room[] = {h, k, v, {}, {}, {}};
    NormQkv::forward(s, q, keys, values, x, gamma, table, {positions, slots}, m, room, a);
  }
};

inline void norm_qkv_reference(Outputs out, Inputs in, const NormQkv::Args& a) {
  const Values &x = in[0], &gamma = in[1], &table = in[2];
  const auto depth = a.head_dim, half = depth / 2, pooled = in[11].dim(1);
  for (std::size_t c = 0; c < 2; ++c)
    for (std::int64_t i = 0; i < in[11 + c].size(); ++i) out[1 + c].set(i, in[11 + c][i], 0);
  for (std::int64_t r = 0; r < x.dim(0) * x.dim(1); ++r) {
    const auto t = static_cast<std::int64_t>(in[3][r]), slot = static_cast<std::int64_t>(in[4][r]);
    const auto h = normed_row(x, gamma, r, static_cast<double>(a.eps));
    for (std::size_t o = 0; o < 3; ++o) {
      const Values &w = in[5 + 2 * o], &bias = in[6 + 2 * o];
      const auto n = w.dim(0);
      const auto to = [&](std::int64_t j) {
        if (o == 0) return r * n + j;
        return ((slot / kPageTokens * pooled + j / depth) * kPageTokens + slot % kPageTokens) * depth + j % depth;
      };
      const auto product = [&](std::int64_t j) { return NormedProduct(h, w, bias, j); };
      for (std::int64_t j = 0; j < n; ++j) {
        const NormedProduct here = product(j);
        if (o == 2) {
          out[o].set(to(j), here.value, here.scale, here.stored);
          continue;
        }
        const auto k = j % depth;
        const NormedProduct other = product(k < half ? j + half : j - half);
        const double cosine = table[t * depth + k % half], sine = table[t * depth + half + k % half];
        const double y = here.value * cosine + other.value * (k < half ? -sine : sine);
        const auto sum = [&](double mine, double theirs) {
          return std::fabs(cosine) * mine + std::fabs(sine) * theirs;
        };
        out[o].set(to(j), y, sum(here.scale, other.scale) + sum(std::fabs(here.value), std::fabs(other.value)),
                   sum(here.stored, other.stored) + std::fabs(y));
      }
    }
  }
}

/// dims: batch, tokens, width, half a head. Variants: two queries for each of two keys; three for one, with biases.
inline Problem norm_qkv_problem(const Dims& d, DType t, int variant) {
  Problem p;
  const auto depth = 2 * d[3], kv = (variant == 0 ? 2 : 1) * depth, n = (variant == 0 ? 2 : 3) * kv;
  const auto weight = [&](Shape s) { return Input{{std::move(s), t}, Role::weight}; };
  const auto bias = [&](std::int64_t size) { return variant == 0 ? Input{} : weight({size}); };
  const Input pool{{{pages_for(d[0] * d[1] + 3), kv / depth, kPageTokens, depth}, t}};
  p.in = {{{{d[0], d[1], d[2]}, t}},
          weight({d[2]}),
          {{{d[1] + 3, depth}, DType::f32}, Role::derived},
          {{{d[0] * d[1]}, DType::i32}, Role::index, d[1] + 3},
          {{{d[0] * d[1]}, DType::i64}, Role::derived},
          weight({n, d[2]}),
          bias(n),
          weight({kv, d[2]}),
          bias(kv),
          weight({kv, d[2]}),
          bias(kv),
          pool,
          pool};
  p.out = {{{d[0], d[1], n}, t}, pool.spec, pool.spec};
  const NormQkv::Args a{.head_dim = depth, .constant_weights = true};
  p.set_args(a);
  return p;
}

inline Contracts norm_qkv_contracts() {
  auto c = of<NormQkvCall>(
      "norm_qkv",
      "h = rms_norm(x); q = rope(h Wq^T + bq); slot t of keys = rope(h Wk^T + bk), of values = h Wv^T + bv, the "
      "other slots stay; matrices (N, K); biases are optional",
      {"x", "gamma", "table", "positions", "slots", "wq", "bq", "wk", "bk", "wv", "bv", "keys", "values"},
      {"q", "keys", "values"});
  c.dims = {{"batch", 1, 4}, {"tokens", 1, 8}, {"width", 1, 90}, {"half", 1, 40}};
  c.shapes = {{1, 1, 32, 8}, {1, 1, 1, 1},   {1, 1, 7, 3},  {2, 1, 33, 5},  {1, 3, 9, 16},  {3, 2, 17, 4},
              {0, 1, 8, 4},  {1, 1, 64, 48}, {2, 5, 40, 8}, {2, 1, 64, 32}, {5, 7, 136, 64}};
  c.typical = {2, 3, 35, 9};
  c.rows = kNoRows;  // the pools are not; the ops that it joins are checked
  c.timed = {1, 1, 2048, 32};
  c.variants = 2;
  c.problem = norm_qkv_problem;
  c.derive = [](std::vector<Values>& in, std::size_t i, const Problem& p, const std::function<double(std::int64_t)>&) {
    if (i == 2) return set_angles(in[i]);
    const auto slots = p.in[11].spec[0] * kPageTokens;
    for (std::int64_t r = 0; r < in[i].size(); ++r) in[i][r] = static_cast<double>(slots - 1 - r);
  };
  c.reference = with_args<NormQkv::Args>(norm_qkv_reference);
  c.reduction = [](const Problem& p) { return p.in[0].spec[-1] + 4; };
  c.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.in[0].spec.size()) *
           static_cast<double>(p.in[5].spec[0] + p.in[7].spec[0] + p.in[9].spec[0]);
  };
  return {c};
}

/// One token.
inline void norm_qkv_cases(auto& to) {
  for (const bool int4 : {false, true})
    to.add_forward(
        int4 ? "norm_qkv+int4" : "norm_qkv", "CxHxGxD",
        {"x 11C", "gamma C", "table GD f32", "positions 1<G", "slots 1<G i64", "k_pool GG(88)D", "v_pool GG(88)D"},
        {{4096, 32, 8, 128}, {2048, 32, 4, 64}}, [int4](const auto& v) {
          const auto width = v.dim('C'), depth = v.dim('D'), kv = v.dim('G') * depth;
          const decltype(decoded_matrix(v, "q", 1, 1, int4)) m[] = {
              decoded_matrix(v, "q", v.dim('H') * depth, width, int4), decoded_matrix(v, "k", kv, width, int4),
              decoded_matrix(v, "v", kv, width, int4)};
          return norm_qkv(v[0], v[1], v[2], {v[3], v[4]}, m, v[5], v[6], {.head_dim = depth, .constant_weights = true});
        });
}

}  // namespace hpcdl::contract
