#pragma once
// The experts of each token and their weights: the `count` largest probabilities of softmax(scores), largest first; of
// equal scores the first. With sum_to_one, the weights are divided by their sum. Inference only.
//
// scores: (..., E) f32, E at most 512. weights: (..., count) f32; experts: (..., count) i32. Source: Shazeer et al.,
// "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", 2017.

#include "hpcdl/op.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct MoeRoute {
  static constexpr std::string_view name = "moe_route";
  static constexpr std::int64_t kMostExperts = 512;
  struct Args {
    int count = 1;
    bool sum_to_one = true;
  };
  static std::array<Spec, 2> infer(const Spec& scores, const Args& a);
  static Cost cost(const Spec& scores, const Args&) {
    return {.operations = 10.0 * static_cast<double>(scores.size())};
  }
  static void forward(Stream& s, Tensor weights, Tensor experts, View scores, const Args& a);
};

namespace cpu {
void moe_route(Pool&, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a);
}  // namespace cpu
namespace cuda {
void moe_route(Stream&, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a);
}  // namespace cuda

inline void MoeRoute::forward(Stream& s, Tensor weights, Tensor experts, View scores, const Args& a) {
  on(
      s, [&](auto, Pool& pool) { cpu::moe_route(pool, weights, experts, scores, a); },
      [&](auto& q) { cuda::moe_route(q, weights, experts, scores, a); });
}

/// {weights, experts}
template <Symbolic V> auto moe_route(const V& scores, MoeRoute::Args a) {
  require_no_gradient(MoeRoute::name, scores);
  return record<MoeRoute>(a, scores);
}

}  // namespace hpcdl
