#include "hpcdl/ops/layer_norm/layer_norm.h"

#include "hpcdl/program/on.h"

namespace hpcdl {
namespace {

void run_layer_norm(Stream& s, const NormForward& o) {
  on(s, [&](auto isa, Pool& pool) { cpu::layer_norm(isa, pool, o); }, [&](auto& q) { cuda::layer_norm(q, o); });
}
void run_layer_norm(Stream& s, const NormBackward& o) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::layer_norm_backward(isa, pool, o); },
      [&](auto& q) { cuda::layer_norm_backward(q, o); });
}

}  // namespace

void LayerNorm::forward(Stream& s, Tensor y, Tensor mean, Tensor rstd, View x, View gamma, View beta, const Args& a) {
  run_layer_norm(s,
                 NormForward{.y = y, .mean = mean, .rstd = rstd, .x = x, .gamma = gamma, .beta = beta, .eps = a.eps});
}
void LayerNorm::backward(Stream& s, Grad dx, Grad dgamma, Grad dbeta, View x, View gamma, View mean, View rstd, View dy,
                         Tensor partial, const Args&) {
  run_layer_norm(s, NormBackward{.dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .h = x,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .gamma = gamma,
                                 .dy = dy,
                                 .partial = partial});
}
void AddLayerNorm::forward(Stream& s, Tensor h, Tensor y, Tensor mean, Tensor rstd, View x, View residual, View gamma,
                           View beta, const Args& a) {
  run_layer_norm(s, NormForward{.h = h,
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .x = x,
                                .residual = residual,
                                .gamma = gamma,
                                .beta = beta,
                                .eps = a.eps});
}
void AddLayerNorm::backward(Stream& s, Grad dx, Grad dresidual, Grad dgamma, Grad dbeta, View gamma, View h, View mean,
                            View rstd, View dh, View dy, Tensor partial, const Args&) {
  run_layer_norm(s, NormBackward{.dx = dx,
                                 .dresidual = dresidual,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .h = h,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .gamma = gamma,
                                 .dy = dy,
                                 .dh_in = dh,
                                 .partial = partial});
}

}  // namespace hpcdl
