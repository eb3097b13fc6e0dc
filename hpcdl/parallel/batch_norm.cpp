#include "hpcdl/parallel/batch_norm.h"

#include <utility>

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/program/check.h"

namespace hpcdl::parallel {
namespace {

using hpcdl::detail::statistic;

/// The two halves of the gradient, which an exchange of the sums lies between. Operands of both: those of
/// SyncBatchNorm::Backward, then sums.
struct BackwardArgs {
  float eps;
  bool relu;
};

BatchNormBackward operands_of(const Grad* t, const void* args) {
  const auto& a = *static_cast<const BackwardArgs*>(args);
  return {.dx = t[0],
          .dresidual = t[1],
          .dweight = t[2],
          .dbias = t[3],
          .x = t[4],
          .y = t[5] ? View(t[9]) : View(),
          .weight = t[6],
          .bias = t[7],
          .mean = statistic(View(t[8]), 0),
          .var = statistic(View(t[8]), 1),
          .dy = t[10],
          .sums = t[12],
          .partial = t[11],
          .eps = a.eps,
          .relu = a.relu};
}

void check_backward(const RawRecord& r) {
  const auto op = "sync_batch_norm";
  r.require_count(13);
  require(valid_args(r.args<BackwardArgs>().relu), op, "\"relu\" is neither true nor false");
  const Spec x = r.spec(4);
  hpcdl::detail::require_batch_norm(op, x, r.spec(6), r.spec(7), r.args<BackwardArgs>().eps);
  const auto like = [&](std::size_t i, const Spec& want, std::string_view what) {
    if (const Spec got = r.spec(i)) require_spec(op, what, got, want);
  };
  const Spec f32{x.shape, DType::f32}, channels{{x[-1]}, DType::f32};
  for (const std::size_t i : {0u, 1u})
    if (const Spec got = r.spec(i); got && got != f32) require_spec(op, "a gradient", got, x);
  for (const std::size_t i : {2u, 3u})
    if (const Spec got = r.spec(i); got && got != r.spec(i + 4)) require_spec(op, "a gradient", got, channels);
  like(5, x, "residual"), like(9, x, "y"), like(10, x, "dy"), like(11, batch_partial(x), "working memory");
  require_spec(op, "statistics", r.contiguous(8), hpcdl::detail::batch_norm_statistics(x));
  require_spec(op, "sums", r.contiguous(12), hpcdl::detail::batch_norm_statistics(x));
}

struct SyncSums {
  static constexpr std::string_view name = "sync_batch_norm.sums";
  using RecordArgs = BackwardArgs;
  static void check_record(const RawRecord& r) {
    check_backward(r);
    require(r.spec(10) && r.spec(11), name, "dy or its working memory is absent");
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto o = operands_of(t, args);
    batch_norm_sums(s, o);
    Fill::forward(s, statistic(o.sums, 2), {static_cast<float>(o.x.rows())});
  }
};

struct SyncGradient {
  static constexpr std::string_view name = "sync_batch_norm.gradient";
  using RecordArgs = BackwardArgs;
  static void check_record(const RawRecord& r) {
    check_backward(r);
    require(static_cast<bool>(r.spec(10)), name, "dy is absent");
  }
  static void run(Stream& s, const Grad* t, const void* args) { batch_norm_gradient(s, operands_of(t, args), 0); }
};

}  // namespace

Spec BatchStatistics::infer(const Spec& x, const Args&) {
  hpcdl::detail::require_batch_norm(name, x, {}, {}, 0);
  require(x.size() > 0, name, "each rank needs a batch, got {}", to_string(x));
  return hpcdl::detail::batch_norm_statistics(x);
}
void BatchStatistics::forward(Stream& s, Tensor statistics, View x, Tensor partial, const Args&) {
  batch_statistics(s, statistic(statistics, 0), statistic(statistics, 1), {}, x, partial);
  Fill::forward(s, statistic(statistics, 2), {static_cast<float>(x.rows())});
}

std::array<Spec, 2> SyncBatchNorm::infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                         const Spec& parts, const Args& a) {
  hpcdl::detail::require_batch_norm(name, x, weight, bias, a.eps);
  if (residual) require_spec(name, "residual", residual, x);
  require_spec(name, "statistics of each rank", parts, {{a.axis.ranks, 3, x[-1]}, DType::f32});
  return {x, hpcdl::detail::batch_norm_statistics(x)};
}

void SyncBatchNorm::forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                            View parts, const Args& a) {
  const Tensor mean = statistic(statistics, 0), var = statistic(statistics, 1);
  merge_statistics(s, mean, var, statistic(statistics, 2), parts);
  batch_normalise(s, {.y = y,
                      .x = x,
                      .residual = residual,
                      .weight = weight,
                      .bias = bias,
                      .mean = mean,
                      .var = var,
                      .eps = a.eps,
                      .relu = a.relu});
}

void SyncBatchNorm::record_backward(Graph& g, std::span<const Operand> given, const Args& a) {
  std::vector<Operand> sums(given.begin(), given.end()), gradient = sums;
  const Spec x = given[4].spec;
  sums.push_back(write_operand(g.temporary("sync_batch_norm.sums", hpcdl::detail::batch_norm_statistics(x))));
  gradient.push_back(sums.back());
  Operand total = sums.back();
  total.access = Access::update, gradient.back().access = Access::read;
  sums[0] = gradient[2] = gradient[3] = gradient[11] = Operand();
  // A residual whose gradient begins here gets dz from the sums, and the other half reads it there.
  if (given[1].access == Access::update) sums[1] = Operand();
  else gradient[1].access = Access::read;
  BackwardArgs args{a.eps, a.relu};
  clear_padding(args);
  const int tensors = !given[5].spec ? 2 : a.relu ? 4 : 3;
  g.emit<SyncSums>(sums, &args, sizeof args, hpcdl::detail::batch_norm_cost(x, 6, tensors), Phase::backward);
  emit_op<AllReduce>(g, std::span<const Operand>(&total, 1), {a.axis}, AllReduce::cost(total.spec, {}));
  g.emit<SyncGradient>(gradient, &args, sizeof args, hpcdl::detail::batch_norm_cost(x, 7, 3), Phase::backward);
}

Var sync_batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                    const BatchNorm::Args& a, const Axis& axis, const Var& residual) {
  Graph& g = x.graph();
  const Var all = gather_rows(record<BatchStatistics>({}, x), axis);
  const Var parts = g.reshape(all, {axis.ranks, 3, x[-1]});
  const auto [y, statistics] = record<SyncBatchNorm>({a, axis}, x, residual, weight, bias, parts);
  if (running_mean) update_running_statistics(running_mean, running_var, statistics, a.momentum);
  return y;
}

}  // namespace hpcdl::parallel
