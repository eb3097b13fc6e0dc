#pragma once

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/kv_write/kv_write.spec.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"

namespace hpcdl::contract {

/// in: q, the elements of the pools of keys and values (pool_values), starts, lengths, pages.
inline void paged_attention_reference(Outputs out, Inputs in, const PagedAttention::Args& a) {
  const Values &q = in[0], &k = in[1], &v = in[2], &starts = in[3], &lengths = in[4], &pages = in[5];
  const auto heads = std::int64_t{a.heads}, kv = k.dim(1), depth = k.dim(3);
  const double scale = a.scale > 0 ? static_cast<double>(a.scale) : 1 / std::sqrt(static_cast<double>(depth));
  for (std::int64_t r = 0; r < lengths.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(starts[r]), end = static_cast<std::int64_t>(starts[r + 1]);
    const auto row_of = [&](std::int64_t key, std::int64_t h) {
      const auto page = static_cast<std::int64_t>(pages[r * pages.dim(1) + key / kPageTokens]);
      return ((page * kv + h * kv / heads) * kPageTokens + key % kPageTokens) * depth;
    };
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto seen = static_cast<std::int64_t>(lengths[r]) - (end - 1 - t), at = (t * heads + h) * depth;
        std::vector<double> w;
        double size = 0, top = -INFINITY, sum = 0;
        const std::int64_t first = a.window > 0 ? std::max<std::int64_t>(seen - a.window, 0) : 0;
        const auto cap = static_cast<double>(a.cap);
        for (std::int64_t j = first; j < seen; ++j) {
          Sum dot;
          for (std::int64_t i = 0; i < depth; ++i) dot.add(scale * q[at + i] * k[row_of(j, h) + i]);
          w.push_back(cap > 0 ? cap * std::tanh(dot.value / cap) : dot.value);
          size = std::max(size, dot.scale), top = std::max(top, w.back());
        }
        for (double& x : w) sum += x = std::exp(x - top);
        for (std::int64_t i = 0; i < depth; ++i) {
          Sum y;
          for (std::int64_t j = first; j < seen; ++j)
            y.add(w[static_cast<std::size_t>(j - first)] / sum * v[row_of(j, h) + i]);
          // Weights may be rounded to the storage type before they are multiplied by values.
          out[0].set(at + i, y.value, y.scale * (1 + 2 * size), y.scale);
        }
      }
  }
}

/// One query, or a prompt's last 512, of each of B sequences with W full pages.
inline void paged_attention_cases(auto& to) {
  const auto with_queries = [&](const char* op, const char* q, int queries, std::vector<Shape> shapes) {
    auto& family = to.add_forward(
        op, "BxHxWxD", {q, "k_pool (BW)H(88)D", "v_pool (BW)H(88)D"}, std::move(shapes), [queries](const auto& v) {
          const auto b = v.dim('B');
          const auto operand = [&](const char* name, Shape s) {
            return v.graph.input(name, {std::move(s), DType::i32});
          };
          return paged_attention(v[0], v[1], v[2], operand("starts", {b + 1}), operand("lengths", {b}),
                                 operand("pages", {b, v.dim('W')}),
                                 {.heads = static_cast<int>(v.dim('H')), .most_queries = queries});
        });
    family.integer = [queries](std::string_view name, std::int64_t i, const Shape& s) {
      return name == "lengths" ? s[2] * kPageTokens : name == "starts" ? i * queries : i;
    };
    family.nearest_supported = [queries](Shape s) {
      s[2] = std::max(s[2], pages_for(queries));
      s[3] = std::min<std::int64_t>(s[3], Attention::kMaxHeadDim);
      return s;
    };
  };
  with_queries("paged_attention", "q 1B(HD)", 1, {{8, 12, 128, 64}, {1, 12, 16, 64}});
  with_queries("paged_attention+prompt", "q 1(888B)(HD)", 512, {{1, 32, 32, 64}, {4, 16, 32, 128}});

  // H query heads read G heads of a pool of the type of q, or of codes.
  const auto grouped = [&](const char* op, DType stored, int queries, std::vector<Shape> shapes) {
    auto& family = to.add_forward(op, "BxHxGxWxD", {}, std::move(shapes), [stored, queries](const auto& v) {
      const auto b = v.dim('B'), heads = v.dim('H');
      const auto input = [&](const char* name, const Spec& spec) { return v.graph.input(name, spec); };
      const Spec pool = pool_of(b * v.dim('W'), v.dim('G'), v.dim('D'), stored == DType::none ? v.dtype : stored);
      const auto q = input("q", {{1, b * queries, heads * v.dim('D')}, v.dtype});
      const auto keys = input("k_pool", pool), values = input("v_pool", pool);
      return paged_attention(q, keys, values, input("starts", {{b + 1}, DType::i32}),
                             input("lengths", {{b}, DType::i32}), input("pages", {{b, v.dim('W')}, DType::i32}),
                             {.heads = static_cast<int>(heads), .most_queries = queries});
    });
    family.integer = [queries](std::string_view name, std::int64_t i, const Shape& s) {
      if (name.ends_with("pool")) return pool_code(i, s[4]);
      return name == "lengths" ? s[3] * kPageTokens : name == "starts" ? i * queries : i;
    };
    family.nearest_supported = [queries](Shape s) {
      s[1] = (s[1] + s[2] - 1) / s[2] * s[2];
      s[3] = std::max(s[3], pages_for(queries));
      s[4] = std::min<std::int64_t>(s[4], Attention::kMaxHeadDim);
      return s;
    };
  };
  const std::vector<Shape> decoding{{1, 32, 8, 512, 128}, {64, 32, 8, 64, 128}}, prompts{{1, 32, 8, 64, 128}};
  for (const auto& [suffix, stored] :
       {std::pair{"gqa", DType::none}, std::pair{"i8", DType::i8}, std::pair{"f8", DType::f8_e4m3}}) {
    grouped(fmt::format("paged_attention+{}", suffix).c_str(), stored, 1, decoding);
    grouped(fmt::format("paged_attention+{}_prompt", suffix).c_str(), stored, 512, prompts);
  }
}

}  // namespace hpcdl::contract
