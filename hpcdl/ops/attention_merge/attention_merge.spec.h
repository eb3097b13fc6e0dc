#pragma once

#include "hpcdl/ops/attention_merge/attention_merge.h"
#include "hpcdl/ops/contract.h"

namespace hpcdl::contract {

inline void attention_merge_reference(Outputs to, Inputs in, const AttentionMerge::Args&) {
  const Values &out = in[0], &lse = in[1], &part = in[2], &part_lse = in[3];
  const auto heads = lse.dim(1), queries = out.dim(1), merged = part.dim(1), d = out.dim(2) / heads;
  for (std::int64_t b = 0; b < out.dim(0); ++b)
    for (std::int64_t t = 0; t < queries; ++t)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto at = (b * heads + h) * queries + t, row = (b * queries + t) * heads + h;
        const bool is_merged = t < merged;
        const double x = lse[at], y = is_merged ? part_lse[(b * heads + h) * merged + t] : -INFINITY;
        const double top = std::max(x, y), all = top + std::log(std::exp(x - top) + std::exp(y - top));
        to[1].set(at, all, 1 + std::fabs(all));
        for (std::int64_t i = 0; i < d; ++i) {
          const double a = std::exp(x - all) * out[row * d + i],
                       p = is_merged ? std::exp(y - all) * part[((b * merged + t) * heads + h) * d + i] : 0;
          const double far = is_merged ? std::fabs(x - y) : 0;  // its rounding error is one of the exponents
          to[0].set(row * d + i, a + p, (std::fabs(a) + std::fabs(p)) * (1 + far));
        }
      }
}

}  // namespace hpcdl::contract
