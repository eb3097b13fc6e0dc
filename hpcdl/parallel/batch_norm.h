#pragma once
// Batch normalisation over the batches of all ranks of an axis together: what one rank would compute on the whole
// batch.
//
// Forward, every rank gathers (mean, variance, count) of each, 3 C floats, and merges them in the order of the ranks,
// so that all get the same bits; backward sums (sum(dz), sum(dz * n), count) over the ranks. Batches may differ in
// size. The gradients of weight and bias are this rank's addends, as those of all other parameters of a data-parallel
// step.

#include "hpcdl/graph/graph.h"
#include "hpcdl/nn/shared_batch.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

/// (3, C) f32: mean and variance of each channel of x (..., C), and the number of rows in each place of the third row.
/// Not differentiable: SyncBatchNorm owns the gradient.
struct BatchStatistics {
  static constexpr std::string_view name = "batch_statistics";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b1;
  struct Args {};
  static Spec infer(const Spec& x, const Args&);
  static Cost cost(const Spec& x, const Args&) { return hpcdl::detail::batch_norm_cost(x, 4, 1); }
  static std::array<Spec, 1> scratch(const Spec& x, const Args&) { return {batch_partial(x)}; }
  static void forward(Stream& s, Tensor statistics, View x, Tensor partial, const Args&);
};

/// y, and the statistics (3, C) of all ranks' batches, from those of each: (p, 3, C). The residual may be absent. See
/// ops/batch_norm/batch_norm.h.
struct SyncBatchNorm {
  static constexpr std::string_view name = "sync_batch_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  struct Args : BatchNorm::Args {
    Axis axis;
    bool valid() const { return valid_args<BatchNorm::Args>(*this) && axis.valid(); }
  };
  static std::array<Spec, 2> infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                   const Spec& parts, const Args& a);
  static Cost cost(const Spec& x, const Spec& residual, const Spec&, const Spec&, const Spec&, const Args&) {
    return hpcdl::detail::batch_norm_cost(x, 5, residual ? 3 : 2);
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&,
                                              const Args&) {
    return {batch_partial(x)};
  }
  static void forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias, View parts,
                      const Args& a);
  /// The sums of this rank, their sum over the ranks, and what follows from it.
  static void record_backward(Graph& g, std::span<const Operand> o, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, In<2>, In<3>, Out<1>, Out<0>, dOut<0>, Scratch<0>>;
};

/// batch_norm over all ranks of `axis`. The running statistics, the same on all ranks, may be absent (both), the
/// residual too.
Var sync_batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                    const BatchNorm::Args& a, const Axis& axis, const Var& residual = {});

/// A batch that the ranks of `data` share: what a training pass is recorded with (nn::ForwardOptions::shared_batch).
/// Outlives the program.
class SharedBatch final : public nn::SharedBatch {
 public:
  explicit SharedBatch(const comm::Group& data) : data_(data) {}
  Var batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                 const BatchNorm::Args& a, const Var& residual) const override {
    return sync_batch_norm(x, weight, bias, running_mean, running_var, a, data_.axis("batch norm"), residual);
  }

 private:
  GroupAxis data_;
};

}  // namespace hpcdl::parallel
