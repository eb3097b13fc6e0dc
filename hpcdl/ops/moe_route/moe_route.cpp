#include "hpcdl/ops/moe_route/moe_route.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/ops/rows.h"

namespace hpcdl {

std::array<Spec, 2> MoeRoute::infer(const Spec& scores, const Args& a) {
  require(scores.dtype == DType::f32 && scores.shape.rank() >= 1 && scores[-1] >= 1 && scores[-1] <= kMostExperts, name,
          "scores must be F32 (..., E) with E <= {}, got {}", kMostExperts, to_string(scores));
  require(a.count >= 1 && a.count <= scores[-1], name, "a token cannot have {} of {} experts", a.count, scores[-1]);
  Spec weights = scores;
  weights.shape[-1] = a.count;
  return {weights, Spec{weights.shape, DType::i32}};
}

namespace cpu {

void moe_route(Pool& pool, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a) {
  const auto count = scores.cols();
  for_rows(pool, scores.rows(), count, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float* from = scores.ptr<float>() + r * scores.row_stride();
      float* weight = weights.ptr<float>() + r * a.count;
      std::int32_t* expert = experts.ptr<std::int32_t>() + r * a.count;
      float top = from[0], all = 0, chosen = 0;
      for (std::int64_t e = 1; e < count; ++e) top = std::max(top, from[e]);
      for (std::int64_t e = 0; e < count; ++e) all += std::exp(from[e] - top);
      for (int i = 0; i < a.count; ++i) {
        std::int32_t best = -1;
        for (std::int32_t e = 0; e < count; ++e)
          if (std::find(expert, expert + i, e) == expert + i && (best < 0 || from[e] > from[best])) best = e;
        expert[i] = best;
        chosen += weight[i] = std::exp(from[best] - top) / all;
      }
      for (int i = 0; a.sum_to_one && i < a.count; ++i) weight[i] /= chosen;
    }
  });
}

/// With w the weights, dw their gradients and d = sum_i w_i dw_i: w_i (dw_i - d) for chosen scores if the weights sum to
/// one, else w_i dw_i - p d, where p is the probability of each score.
void moe_route_backward(Pool& pool, Grad dscores, View scores, View weights, View experts, View dweights,
                        const MoeRoute::Args& a) {
  const auto count = scores.cols();
  for_rows(pool, scores.rows(), count, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float* from = scores.ptr<float>() + r * scores.row_stride();
      const float* weight = weights.ptr<float>() + r * weights.row_stride();
      const float* dweight = dweights.ptr<float>() + r * dweights.row_stride();
      const std::int32_t* expert = experts.ptr<std::int32_t>() + r * experts.row_stride();
      float* to = dscores.ptr<float>() + r * dscores.row_stride();
      float dot = 0;
      for (int i = 0; i < a.count; ++i) dot += weight[i] * dweight[i];
      if (!dscores.accumulate()) std::fill_n(to, count, 0.0f);
      if (!a.sum_to_one) {
        const float top = *std::max_element(from, from + count);
        float all = 0;
        for (std::int64_t e = 0; e < count; ++e) all += std::exp(from[e] - top);
        for (std::int64_t e = 0; e < count; ++e) to[e] -= std::exp(from[e] - top) / all * dot;
      }
      for (int i = 0; i < a.count; ++i) to[expert[i]] += weight[i] * (dweight[i] - (a.sum_to_one ? dot : 0));
    }
  });
}

}  // namespace cpu

}  // namespace hpcdl
