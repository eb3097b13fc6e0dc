#pragma once

#include "hpcdl/ops/attention/attention.spec.h"
#include "hpcdl/ops/packed_attention/packed_attention.h"

namespace hpcdl::contract {

/// in: q, k, v, starts.
inline void packed_attention_reference(Outputs out, Inputs in, const PackedAttention::Args& a) {
  const Values &q = in[0], &k = in[1], &v = in[2], &starts = in[3];
  const auto heads = std::int64_t{a.heads}, kv = a.kv_heads > 0 ? std::int64_t{a.kv_heads} : heads,
             depth = q.dim(2) / heads;
  const double scale = a.scale > 0 ? static_cast<double>(a.scale) : 1 / std::sqrt(static_cast<double>(depth));
  const double least = least_normal(v.spec.dtype);
  for (std::int64_t r = 0; r + 1 < starts.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(starts[r]), end = static_cast<std::int64_t>(starts[r + 1]);
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto row = [&](std::int64_t j) { return (j * kv + h * kv / heads) * depth; };
        const auto at = (t * heads + h) * depth;
        std::vector<double> w;
        double size = 0, top = -INFINITY, sum = 0;
        for (std::int64_t j = begin; j < end; ++j) {
          Sum dot;
          for (std::int64_t i = 0; i < depth; ++i) dot.add(scale * q[at + i] * k[row(j) + i]);
          w.push_back(dot.value);
          size = std::max(size, dot.scale), top = std::max(top, dot.value);
        }
        for (double& x : w) sum += x = std::exp(x - top);
        for (std::int64_t i = 0; i < depth; ++i) {
          Sum y;
          double rounded = 0;  // weights may be rounded to the storage type before they are multiplied by values
          for (std::int64_t j = begin; j < end; ++j) {
            const double weight = w[static_cast<std::size_t>(j - begin)] / sum, x = v[row(j) + i];
            y.add(weight * x), rounded += std::max(weight, least) * std::fabs(x);
          }
          out[0].set(at + i, y.value, y.scale * (1 + 2 * size), rounded);
        }
      }
  }
}

/// B sequences of T tokens.
inline void packed_attention_cases(auto& to) {
  auto& family = to.add_forward("packed_attention", "BxTxHxD", {"q 1(BT)(HD)", "k 1(BT)(HD)", "v 1(BT)(HD)"},
                                {{32, 64, 12, 32}, {8, 512, 12, 64}, {1, 8192, 16, 64}}, [](const auto& v) {
                                  const auto starts = v.graph.input("starts", {{v.dim('B') + 1}, DType::i32});
                                  return packed_attention(v[0], v[1], v[2], starts,
                                                          {.heads = static_cast<int>(v.dim('H')), .most = v.dim('T')});
                                });
  family.integer = [](std::string_view, std::int64_t i, const Shape& s) { return i * s[1]; };
  family.nearest_supported = [](Shape s) {
    s[3] = std::min<std::int64_t>(s[3], Attention::kMaxHeadDim);
    return s;
  };
}

}  // namespace hpcdl::contract
