#pragma once
// cross_entropy with label smoothing and weights for the rows. With s = label_smoothing and V classes,
//
//   loss = sum over valid rows of weight * ((1 - s) * (logsumexp(x) - x[target]) + s * (logsumexp(x) - mean(x)))
//   count = sum over valid rows of weight
//
// so that loss / count is torch's mean. Operands as in cross_entropy.h; weights: (...) f32, absent: 1. They have no
// gradient. Mixup is the loss of one target with weights l plus that of the other with weights 1 - l; the two counts
// sum to the number of rows.
//   dx = weight * (softmax(x) - (1 - s) * onehot(target) - s / V) * dloss, 0 for ignored rows
// Source: Szegedy et al., "Rethinking the inception architecture for computer vision", 2016, section 7.

#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct SmoothCrossEntropy {
  static constexpr std::string_view name = "smooth_cross_entropy";
  static constexpr OpClass kClass = OpClass::loss;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 1;
  struct Args {
    float label_smoothing = 0;
  };
  /// loss, count, lse.
  static std::array<Spec, 3> infer(const Spec& logits, const Spec& targets, const Spec& weights, const Args& a) {
    const auto out = CrossEntropy::infer(logits, targets, {});
    if (weights) require_spec(name, "weights", weights, {targets.shape, DType::f32});
    require(a.label_smoothing >= 0 && a.label_smoothing <= 1, name, "label_smoothing must be in [0, 1], got {}",
            a.label_smoothing);
    return out;
  }
  static Cost cost(const Spec& logits, const Spec&, const Spec&, const Args&) {
    return {.operations = 5.0 * static_cast<double>(logits.size())};
  }
  static std::array<Spec, 1> scratch(const Spec& logits, const Spec& targets, const Spec&, const Args&) {
    return CrossEntropy::scratch(logits, targets, {});
  }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, View weights,
                      Tensor row_loss, const Args& a);
  static void backward(Stream& s, Grad dlogits, View logits, View targets, View weights, View lse, View dloss,
                       const Args& a);
  using Backward = Operands<dIn<0>, In<0>, In<1>, In<2>, Out<2>, dOut<0>>;
};

inline void SmoothCrossEntropy::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets,
                                        View weights, Tensor row_loss, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::cross_entropy_rows(isa, pool, row_loss, lse, logits, targets, weights, a.label_smoothing);
        cpu::cross_entropy_sum(isa, loss, count, row_loss, targets, weights);
      },
      [&](auto& q) {
        cuda::cross_entropy(q, loss, count, lse, logits, targets, row_loss, weights, a.label_smoothing);
      });
}
inline void SmoothCrossEntropy::backward(Stream& s, Grad dlogits, View logits, View targets, View weights, View lse,
                                         View dloss, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::cross_entropy_backward(isa, pool, dlogits, logits, targets, lse, dloss ? *dloss.ptr<float>() : 0.0f,
                                    weights, a.label_smoothing);
      },
      [&](auto& q) {
        cuda::cross_entropy_backward(q, dlogits, logits, targets, lse, dloss, weights, a.label_smoothing);
      });
}

/// {loss, count}. `weights` may be absent; without them and without smoothing this is the plain op.
template <Symbolic V>
auto cross_entropy(const V& logits, const V& targets, const SmoothCrossEntropy::Args& a, const V& weights = {}) {
  return a.label_smoothing == 0 && !weights ? record<CrossEntropy>({}, logits, targets)
                                            : record<SmoothCrossEntropy>(a, logits, targets, weights);
}

}  // namespace hpcdl
