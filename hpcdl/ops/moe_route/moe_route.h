#pragma once
// The experts of each token and their weights: the `count` largest probabilities of softmax(scores), largest first; of
// equal scores the first. With sum_to_one, the weights are divided by their sum. The choice has no gradient; the weights
// pass theirs on to all scores, or, with sum_to_one, to those of the chosen experts.
//
// scores: (..., E) f32, E at most 512. weights: (..., count) f32; experts: (..., count) i32. Source: Shazeer et al.,
// "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", 2017.

#include "hpcdl/op.h"
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
  static void backward(Stream& s, Grad dscores, View scores, View weights, View experts, View dweights, const Args& a);
  using Backward = Operands<dIn<0>, In<0>, Out<0>, Out<1>, dOut<0>>;
};

namespace cpu {
void moe_route(Pool&, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a);
void moe_route_backward(Pool&, Grad dscores, View scores, View weights, View experts, View dweights,
                        const MoeRoute::Args& a);
}  // namespace cpu
namespace cuda {
void moe_route(Stream&, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a);
void moe_route_backward(Stream&, Grad dscores, View scores, View weights, View experts, View dweights,
                        const MoeRoute::Args& a);
}  // namespace cuda

inline void MoeRoute::forward(Stream& s, Tensor weights, Tensor experts, View scores, const Args& a) {
  on(
      s, [&](auto, Pool& pool) { cpu::moe_route(pool, weights, experts, scores, a); },
      [&](auto& q) { cuda::moe_route(q, weights, experts, scores, a); });
}

inline void MoeRoute::backward(Stream& s, Grad dscores, View scores, View weights, View experts, View dweights,
                               const Args& a) {
  on(
      s, [&](auto, Pool& pool) { cpu::moe_route_backward(pool, dscores, scores, weights, experts, dweights, a); },
      [&](auto& q) { cuda::moe_route_backward(q, dscores, scores, weights, experts, dweights, a); });
}

/// {weights, experts}
template <Symbolic V> auto moe_route(const V& scores, MoeRoute::Args a) { return record<MoeRoute>(a, scores); }

}  // namespace hpcdl
