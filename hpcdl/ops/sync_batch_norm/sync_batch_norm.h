#pragma once
// Batch normalisation over the combined batches of all ranks of an axis: the result that one rank would compute on the
// whole batch.
//
// In forward, every rank gathers (mean, variance, count) of each rank, 3 C floats, and merges them in the order of the
// ranks, so that all get the same bits; backward sums (sum(dz), sum(dz * n), count) over the ranks. Batches may differ
// in size. The gradients of weight and bias are this rank's summands, like those of all other parameters of a
// data-parallel step.

#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/exchange/exchange.h"

namespace hpcdl {

/// (3, C) f32: mean and variance of each channel of x (..., C), and the number of rows in every element of the third
/// row. Not differentiable: SyncBatchNorm owns the gradient.
struct BatchStatistics {
  static constexpr std::string_view name = "batch_statistics";
  static constexpr OpClass kClass = OpClass::norm;
  static constexpr unsigned kCasts = 0b1;
  struct Args {};
  static Spec infer(const Spec& x, const Args&);
  static Cost cost(const Spec& x, const Args&) { return detail::batch_norm_cost(x, 4, 0); }
  static std::array<Spec, 1> scratch(const Spec& x, const Args&) { return {batch_partial(x)}; }
  static void forward(Stream& s, Tensor statistics, View x, Tensor partial, const Args&);
};

/// y, and the statistics (3, C) over all ranks' batches, from those of each rank: (p, 3, C). The residual may be
/// absent. See ops/batch_norm/batch_norm.h.
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
  static Cost cost(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&, const Args&) {
    return detail::batch_norm_cost(x, 5, 0);
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Spec&,
                                              const Args&) {
    return {batch_partial(x)};
  }
  static void forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias, View parts,
                      const Args& a);
  /// Records this rank's sums, their sum over the ranks, and the gradients computed from it.
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, In<2>, In<3>, Out<1>, Out<0>, dOut<0>, Scratch<0>>;
};

/// The two halves of the gradient, with an exchange of the sums between them. Operands of both: those of
/// SyncBatchNorm::Backward, then the sums.
struct SyncBackwardArgs {
  float eps;
  bool relu;
};
struct SyncSums {
  static constexpr std::string_view name = "sync_batch_norm.sums";
  using RecordArgs = SyncBackwardArgs;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};
struct SyncGradient {
  static constexpr std::string_view name = "sync_batch_norm.gradient";
  using RecordArgs = SyncBackwardArgs;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};

template <class G> void SyncBatchNorm::record_backward(G& g, std::span<const Operand> given, const Args& a) {
  std::vector<Operand> sums(given.begin(), given.end()), gradient = sums;
  const Spec x = given[4].spec;
  sums.push_back(write_operand(g.temporary("sync_batch_norm.sums", detail::batch_norm_statistics(x))));
  gradient.push_back(sums.back());
  Operand total = sums.back();
  total.access = Access::update, gradient.back().access = Access::read;
  sums[0] = gradient[2] = gradient[3] = gradient[11] = Operand();
  // A residual whose gradient begins here receives dz from the sums, and the other half reads it there.
  if (given[1].access == Access::update) sums[1] = Operand();
  else gradient[1].access = Access::read;
  SyncBackwardArgs args{a.eps, a.relu};
  clear_padding(args);
  // The residual is not read, and y only for relu after a residual; if dz is kept, it is read instead of dy and y.
  const bool residual = given[5].slot >= 0, reads_y = residual && a.relu, keeps_dz = sums[1].slot >= 0;
  const int unread = (residual ? 1 : 0) + (reads_y ? 0 : 1), later = (residual ? 1 : 0) + (keeps_dz ? 2 : !reads_y);
  g.template emit<SyncSums>(sums, &args, sizeof args, detail::batch_norm_cost(x, 6, -unread), Phase::backward);
  emit_op<AllReduce>(g, std::span<const Operand>(&total, 1), {a.axis});
  g.template emit<SyncGradient>(gradient, &args, sizeof args, detail::batch_norm_cost(x, 7, -later), Phase::backward);
}

/// batch_norm over all ranks of `axis`. The running statistics, equal on all ranks, may be absent (both); so may the
/// residual.
template <Symbolic V>
V sync_batch_norm(const V& x, const V& weight, const V& bias, const V& running_mean, const V& running_var,
                  const BatchNorm::Args& a, const Axis& axis, const V& residual = {}) {
  const V all = gather_rows(record<BatchStatistics>({}, x), axis);
  const V parts = x.graph().reshape(all, {axis.ranks, 3, x[-1]});
  const auto [y, statistics] = record<SyncBatchNorm>({a, axis}, x, residual, weight, bias, parts);
  if (running_mean) update_running_statistics(running_mean, running_var, statistics, a.momentum);
  return y;
}

}  // namespace hpcdl
