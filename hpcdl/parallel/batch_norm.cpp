#include "hpcdl/parallel/batch_norm.h"

#include "hpcdl/ops/fill/fill.h"

namespace hpcdl::parallel {
namespace {

Tensor third(const Tensor& t) { return hpcdl::detail::statistic(t, 2); }

}  // namespace

std::array<Spec, 2> SyncBatchNorm::infer(const Spec& x, const Spec& residual, const Spec& weight, const Spec& bias,
                                         const Args& a) {
  hpcdl::detail::require_batch_norm(name, x, weight, bias, a.eps);
  require(x.size() > 0, name, "each rank needs a batch, got {}", to_string(x));
  if (residual) require_spec(name, "residual", residual, x);
  return {x, hpcdl::detail::batch_norm_statistics(x)};
}
Cost SyncBatchNorm::cost(const Spec& x, const Spec& residual, const Spec&, const Spec&, const Args&) {
  return hpcdl::detail::batch_norm_cost(x, 9, residual ? 4 : 3);
}
Cost SyncBatchNorm::backward_cost(const Spec& x, const Spec& residual, const Spec&, const Spec&, const Args& a) {
  return hpcdl::detail::batch_norm_cost(x, 13, !residual ? 5 : a.relu ? 7 : 6);
}
std::array<Spec, 3> SyncBatchNorm::scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Args& a) {
  return {batch_partial(x), Spec{{3, x[-1]}, DType::f32}, Spec{{a.peers.size(), 3, x[-1]}, DType::f32}};
}
std::array<Spec, 2> SyncBatchNorm::backward_scratch(const Spec& x, const Spec&, const Spec&, const Spec&, const Args&) {
  return {batch_partial(x), Spec{{3, x[-1]}, DType::f32}};
}

void SyncBatchNorm::forward(Stream& s, Tensor y, Tensor statistics, View x, View residual, View weight, View bias,
                            Tensor partial, Tensor mine, Tensor all, const Args& a) {
  using hpcdl::detail::statistic;
  batch_statistics(s, statistic(mine, 0), statistic(mine, 1), {}, x, partial);
  Fill::forward(s, third(mine), {static_cast<float>(x.rows())});
  a.peers.all_gather(s, all, mine);
  const Tensor mean = statistic(statistics, 0), var = statistic(statistics, 1);
  merge_statistics(s, mean, var, third(statistics), all);
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

void SyncBatchNorm::backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, Grad dbias, View x, View residual,
                             View weight, View bias, View statistics, View y, View dy, Tensor partial, Tensor sums,
                             const Args& a) {
  using hpcdl::detail::statistic;
  const BatchNormBackward o{.dx = dx,
                            .dresidual = dresidual,
                            .dweight = dweight,
                            .dbias = dbias,
                            .x = x,
                            .y = residual ? y : View(),
                            .weight = weight,
                            .bias = bias,
                            .mean = statistic(statistics, 0),
                            .var = statistic(statistics, 1),
                            .dy = dy,
                            .sums = sums,
                            .partial = partial,
                            .eps = a.eps,
                            .relu = a.relu};
  batch_norm_sums(s, o);
  Fill::forward(s, third(sums), {static_cast<float>(x.rows())});
  a.peers.all_reduce(s, sums);
  batch_norm_gradient(s, o, 0);
}

Var sync_batch_norm(const Var& x, const Var& weight, const Var& bias, const Var& running_mean, const Var& running_var,
                    const BatchNorm::Args& a, const Peers& peers, const Var& residual) {
  const auto [y, statistics] = record<SyncBatchNorm>({a, peers}, x, residual, weight, bias);
  if (running_mean) update_running_statistics(running_mean, running_var, statistics, a.momentum);
  return y;
}

}  // namespace hpcdl::parallel
