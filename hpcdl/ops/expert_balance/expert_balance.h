#pragma once
// The loss that keeps the experts of a mixture equally used: E coefficient sum_e f_e P_e, with f_e the choices of expert e
// per token, and P_e its mean probability over the tokens of all layers. Source: Fedus et al., "Switch transformers", 2022,
// in the form of transformers, which has one loss for all layers.
//
// expert_load() adds what one layer contributes; expert_balance() makes the loss of it. Choices have no gradient.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// probabilities: for each expert the sum of its probabilities softmax(scores); counts: how often it was chosen. Both f32
/// (E), added to those of earlier layers, which may be absent.
///
/// scores (..., E) f32; experts (..., count) i32, as moe_route() gives them.
struct ExpertLoad {
  static constexpr std::string_view name = "expert_load";
  static constexpr std::int64_t kMostExperts = 512, kChunk = 64;  // rows that are summed first
  static constexpr int kPasses = 2;
  struct Args {};
  static std::array<Spec, 2> infer(const Spec& scores, const Spec& experts, const Spec& probabilities,
                                   const Spec& counts, const Args&);
  static Cost cost(const Spec& scores, const Spec&, const Spec&, const Spec&, const Args&) {
    return {.operations = 10.0 * static_cast<double>(scores.size())};
  }
  /// The sums of each chunk.
  static std::array<Spec, 1> scratch(const Spec& scores, const Spec&, const Spec&, const Spec&, const Args&);
  static void forward(Stream& s, Tensor probabilities, Tensor counts, View scores, View experts,
                      View probabilities_before, View counts_before, Tensor parts, const Args&);
  static void backward(Stream& s, Grad dscores, Grad dbefore, View scores, View dprobabilities, const Args&);
  using Backward = Operands<dIn<0>, dIn<2>, In<0>, dOut<0>>;
};

/// One f32: the loss times the number of valid targets, of which losses of tokens are sums.
///
/// probabilities (E): of `layers` layers with a token for each target; counts (ranks E): of as many layers, rank by rank. targets: i32,
/// negative ones are not valid.
struct ExpertBalance {
  static constexpr std::string_view name = "expert_balance";
  struct Args {
    float coefficient = 0;
    std::int32_t layers = 1, ranks = 1;
    bool gradient = true;  // false: another rank that shares the layers contributes the gradient
  };
  static Spec infer(const Spec& probabilities, const Spec& counts, const Spec& targets, const Args& a);
  static Cost cost(const Spec& probabilities, const Spec&, const Spec& targets, const Args&) {
    return {.operations = 2.0 * static_cast<double>(probabilities.size()) + static_cast<double>(targets.size())};
  }
  static void forward(Stream& s, Tensor loss, View probabilities, View counts, View targets, const Args& a);
  static void backward(Stream& s, Grad dprobabilities, View counts, View targets, View dloss, const Args& a);
  using Backward = Operands<dIn<0>, In<1>, In<2>, dOut<0>>;

  /// What the sum over experts of probability times count is multiplied by, for each valid target.
  static double factor(std::int64_t experts, std::int64_t targets, const Args& a) {
    const double rows = static_cast<double>(targets) * a.layers;
    return rows > 0 ? a.coefficient * static_cast<double>(experts) / rows / (rows * a.ranks) : 0;
  }
};

namespace cpu {
void expert_load(Pool&, Tensor probabilities, Tensor counts, View scores, View experts, View probabilities_before,
                 View counts_before, Tensor parts);
void expert_load_backward(Pool&, Grad dscores, View scores, View dprobabilities);
void expert_balance(Tensor loss, View probabilities, View counts, View targets, double factor);
void expert_balance_backward(Grad dprobabilities, View counts, View targets, View dloss, double factor);
}  // namespace cpu
namespace cuda {
void expert_load(Stream&, Tensor probabilities, Tensor counts, View scores, View experts, View probabilities_before,
                 View counts_before, Tensor parts);
void expert_load_backward(Stream&, Grad dscores, View scores, View dprobabilities);
void expert_balance(Stream&, Tensor loss, View probabilities, View counts, View targets, double factor);
void expert_balance_backward(Stream&, Grad dprobabilities, View counts, View targets, View dloss, double factor);
}  // namespace cuda

/// {probabilities, counts}; those of earlier layers may be absent.
template <Symbolic V> auto expert_load(const V& scores, const V& experts, const V& probabilities, const V& counts) {
  return record<ExpertLoad>({}, scores, experts, probabilities, counts);
}
template <Symbolic V>
V expert_balance(const V& probabilities, const V& counts, const V& targets, const ExpertBalance::Args& a) {
  return record<ExpertBalance>(a, probabilities, counts, targets);
}

}  // namespace hpcdl
