#pragma once
// loss = sum over valid rows of (logsumexp(x) - x[target]); count = number of valid rows.
//
// logits x: (..., V) f32 or bf16. targets: (...) i32; a negative target is ignored, one >= V makes the loss NaN. Both
// outputs are f32 (1). The loss is deliberately a sum: code that adds several micro-batches or ranks divides by the
// total count, through StepParams::grad_scale for the gradients and on the host for the log, which is exact for every
// split. Kept for backward: lse (rows), f32. backward may overwrite x with dx in place (raw kernels; a program keeps
// them separate).
//   dx = (exp(x - lse) - onehot(target)) * dloss, 0 for ignored rows
// For far rows (far_lse.h) backward recomputes the maximum and the logarithm of the sum.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  static constexpr OpClass kClass = OpClass::loss;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 1;
  struct Args {};
  /// loss, count, lse.
  static std::array<Spec, 3> infer(const Spec& logits, const Spec& targets, const Args&) {
    require_float(name, logits, "logits");
    require(logits[-1] > 0, name, "rows must not be empty, got {}", to_string(logits));
    Shape rows;
    for (int i = 0; i + 1 < logits.shape.rank(); ++i) rows.push_back(logits[i]);
    if (rows.rank() == 0) rows.push_back(1);
    require_spec(name, "targets", targets, {rows, DType::i32});
    return {Spec{{1}, DType::f32}, Spec{{1}, DType::f32}, Spec{rows, DType::f32}};
  }
  static Cost cost(const Spec& logits, const Spec&, const Args&) {
    return {.operations = 4.0 * static_cast<double>(logits.size())};
  }
  /// The loss of every row, summed afterwards in a fixed order.
  static std::array<Spec, 1> scratch(const Spec& logits, const Spec&, const Args&) {
    return {Spec{{logits.shape.size() / logits[-1]}, DType::f32}};
  }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets, Tensor row_loss,
                      const Args&);
  static void backward(Stream& s, Grad dlogits, View logits, View targets, View lse, View dloss, const Args&);
  using Backward = Operands<dIn<0>, In<0>, In<1>, Out<2>, dOut<0>>;
};

// `weights` of rows (absent: 1) and `smoothing`: smooth.h.
namespace cpu {
/// lse and row_loss: (rows) f32; lse may be null. Ignored rows have row_loss 0.
template <class Isa>
void cross_entropy_rows(Isa, Pool&, Tensor row_loss, Tensor lse, View logits, View targets, View weights = {},
                        float smoothing = 0);
/// loss = sum(row_loss), count = sum of the weights of targets >= 0, in fixed order and double.
template <class Isa>
void cross_entropy_sum(Isa, Tensor loss, Tensor count, View row_loss, View targets, View weights = {});
template <class Isa>
void cross_entropy_backward(Isa, Pool&, Grad dlogits, View logits, View targets, View lse, float dloss,
                            View weights = {}, float smoothing = 0);
}  // namespace cpu
namespace cuda {
void cross_entropy(Stream&, Tensor loss, Tensor count, Tensor lse, View logits, View targets, Tensor row_loss,
                   View weights = {}, float smoothing = 0);
/// loss = sum(row_loss), count = sum of the weights of targets >= 0, in fixed order and double.
void cross_entropy_sum(Stream&, Tensor loss, Tensor count, View row_loss, View targets, View weights = {});
void cross_entropy_backward(Stream&, Grad dlogits, View logits, View targets, View lse, View dloss, View weights = {},
                            float smoothing = 0);
}  // namespace cuda

inline void CrossEntropy::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, View logits, View targets,
                                  Tensor row_loss, const Args&) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::cross_entropy_rows(isa, pool, row_loss, lse, logits, targets);
        cpu::cross_entropy_sum(isa, loss, count, row_loss, targets);
      },
      [&](auto& q) { cuda::cross_entropy(q, loss, count, lse, logits, targets, row_loss); });
}
inline void CrossEntropy::backward(Stream& s, Grad dlogits, View logits, View targets, View lse, View dloss,
                                   const Args&) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::cross_entropy_backward(isa, pool, dlogits, logits, targets, lse, dloss ? *dloss.ptr<float>() : 0.0f);
      },
      [&](auto& q) { cuda::cross_entropy_backward(q, dlogits, logits, targets, lse, dloss); });
}

/// {loss, count}. With label smoothing and weights: smooth.h.
template <Symbolic V> auto cross_entropy(const V& logits, const V& targets) {
  return record<CrossEntropy>({}, logits, targets);
}

}  // namespace hpcdl
