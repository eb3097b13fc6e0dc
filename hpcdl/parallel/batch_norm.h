#pragma once
// Batch normalisation over the batches of all ranks of a group together: what one rank would compute on the whole
// batch.
//
// Forward, every rank gathers (mean, variance, count) of each, 3 C floats, and merges them in the order of the ranks,
// so that all get the same bits; backward sums (sum(dz), sum(dz * n), count) over the ranks. Batches may differ in
// size. The gradients of weight and bias are this rank's addends, as those of all other parameters of a data-parallel
// step.

#include "hpcdl/nn/shared_batch.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/parallel/collectives.h"

namespace hpcdl::parallel {

/// y, and the statistics (3, C) of all ranks' batches; the residual may be absent. See ops/batch_norm/batch_norm.h.
struct SyncBatchNorm {
  static constexpr std::string_view name = "sync_batch_norm";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b11;
  struct Args : BatchNorm::Args {
    Peers peers;
    bool valid() const { return valid_args<BatchNorm::Args>(*this) && peers.valid(); }
  };
  static std::array<Spec, 2> infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                   const Args& a);
  static Cost cost(const Spec& x, const Spec& residual, const Spec&, const Spec&, const Args&);
  static Cost backward_cost(const Spec& x, const Spec& residual, const Spec&, const Spec&, const Args& a);
  static std::array<Spec, 3> scratch(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                     const Args& a);
  static std::array<Spec, 2> backward_scratch(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                              const Args& a);
  static void forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                      Tensor partial, Tensor mine, Tensor all, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x, View residual, View weight,
                       View bias, View statistics, View y, View dy, Tensor partial, Tensor sums, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, In<2>, In<3>, Out<1>, Out<0>, dOut<0>,
                            Scratch<0>, Scratch<1>>;
};

/// batch_norm over all ranks of `peers`. The running statistics, the same on all ranks, may be absent (both), the
/// residual too.
Var sync_batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                    const BatchNorm::Args& a, const Peers& peers, const Var& residual = {});

/// A batch that the ranks of `data` share: what a training pass is recorded with (nn::ForwardOptions::shared_batch).
/// Outlives the program.
class SharedBatch final : public nn::SharedBatch {
 public:
  explicit SharedBatch(const comm::Group& data) : data_(data) {}
  Var batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                 const BatchNorm::Args& a, const Var& residual) const override {
    return sync_batch_norm(x, weight, bias, running_mean, running_var, a, Peers(data_).of("batch norm"), residual);
  }

 private:
  comm::Group data_;
};

}  // namespace hpcdl::parallel
