#include "hpcdl/ops/sync_batch_norm/sync_batch_norm.h"

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

using detail::statistic;

BatchNormBackward operands_of(const Grad* t, const void* args) {
  const auto& a = *static_cast<const SyncBackwardArgs*>(args);
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
  require(valid_args(r.args<SyncBackwardArgs>().relu), op, "\"relu\" is neither true nor false");
  const Spec x = r.spec(4);
  detail::require_batch_norm(op, x, r.spec(6), r.spec(7), r.args<SyncBackwardArgs>().eps);
  const auto like = [&](std::size_t i, const Spec& want, std::string_view what) {
    if (const Spec got = r.spec(i)) require_spec(op, what, got, want);
  };
  const Spec f32{x.shape, DType::f32}, channels{{x[-1]}, DType::f32};
  for (const std::size_t i : {0u, 1u})
    if (const Spec got = r.spec(i); got && got != f32) require_spec(op, "a gradient", got, x);
  for (const std::size_t i : {2u, 3u})
    if (const Spec got = r.spec(i); got && got != r.spec(i + 4)) require_spec(op, "a gradient", got, channels);
  like(5, x, "residual"), like(9, x, "y"), like(10, x, "dy"), like(11, batch_partial(x), "working memory");
  require_spec(op, "statistics", r.contiguous(8), detail::batch_norm_statistics(x));
  require_spec(op, "sums", r.contiguous(12), detail::batch_norm_statistics(x));
}

}  // namespace

void SyncSums::check_record(const RawRecord& r) {
  check_backward(r);
  require(r.spec(10) && r.spec(11), name, "dy or its working memory is absent");
}
void SyncSums::run(Stream& s, const Grad* t, const void* args) {
  const auto o = operands_of(t, args);
  batch_norm_sums(s, o);
  Fill::forward(s, statistic(o.sums, 2), {static_cast<float>(o.x.rows())});
}

void SyncGradient::check_record(const RawRecord& r) {
  check_backward(r);
  require(static_cast<bool>(r.spec(10)), name, "dy is absent");
}
void SyncGradient::run(Stream& s, const Grad* t, const void* args) { batch_norm_gradient(s, operands_of(t, args), 0); }

Spec BatchStatistics::infer(const Spec& x, const Args&) {
  detail::require_batch_norm(name, x, {}, {}, 0);
  require(x.size() > 0, name, "each rank needs a batch, got {}", to_string(x));
  return detail::batch_norm_statistics(x);
}
void BatchStatistics::forward(Stream& s, Tensor statistics, View x, Tensor partial, const Args&) {
  batch_statistics(s, statistic(statistics, 0), statistic(statistics, 1), {}, x, partial);
  Fill::forward(s, statistic(statistics, 2), {static_cast<float>(x.rows())});
}

std::array<Spec, 2> SyncBatchNorm::infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                         const Spec& parts, const Args& a) {
  detail::require_batch_norm(name, x, weight, bias, a.eps);
  if (residual) require_spec(name, "residual", residual, x);
  require_spec(name, "statistics of each rank", parts, {{a.axis.ranks, 3, x[-1]}, DType::f32});
  return {x, detail::batch_norm_statistics(x)};
}

void SyncBatchNorm::forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                            View parts, const Args& a) {
  const Tensor mean = statistic(statistics, 0), var = statistic(statistics, 1);
  merge_statistics(s, mean, var, statistic(statistics, 2), parts);
  BatchNormInference::forward(s, y, x, residual, weight, bias, mean, var, a);
}

}  // namespace hpcdl
