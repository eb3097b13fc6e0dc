#include "hpcdl/ops/rms_norm/rms_norm.h"

#include "hpcdl/program/on.h"

namespace hpcdl {
namespace {

void run_rms_norm(Stream& s, const NormForward& o) {
  on(s, [&](auto isa, Pool& pool) { cpu::rms_norm(isa, pool, o); }, [&](auto& q) { cuda::rms_norm(q, o); });
}
void run_rms_norm(Stream& s, const NormBackward& o) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::rms_norm_backward(isa, pool, o); },
      [&](auto& q) { cuda::rms_norm_backward(q, o); });
}

}  // namespace

void RmsNorm::forward(Stream& s, Tensor y, Tensor rstd, View x, View weight, const Args& a) {
  run_rms_norm(
      s, NormForward{.y = y, .rstd = rstd, .x = x, .gamma = weight, .eps = a.eps, .gamma_offset = a.weight_offset});
}
void RmsNorm::backward(Stream& s, Grad dx, Grad dweight, View x, View weight, View rstd, View dy, Tensor partial,
                       const Args& a) {
  run_rms_norm(s, NormBackward{.dx = dx,
                               .dgamma = dweight,
                               .h = x,
                               .rstd = rstd,
                               .gamma = weight,
                               .dy = dy,
                               .partial = partial,
                               .gamma_offset = a.weight_offset});
}
void AddRmsNorm::forward(Stream& s, Tensor h, Tensor y, Tensor rstd, View x, View residual, View weight,
                         const Args& a) {
  run_rms_norm(s, NormForward{.h = h,
                              .y = y,
                              .rstd = rstd,
                              .x = x,
                              .residual = residual,
                              .gamma = weight,
                              .eps = a.eps,
                              .gamma_offset = a.weight_offset});
}
void AddRmsNorm::backward(Stream& s, Grad dx, Grad dresidual, Grad dweight, View weight, View h, View rstd, View dh,
                          View dy, Tensor partial, const Args& a) {
  run_rms_norm(s, NormBackward{.dx = dx,
                               .dresidual = dresidual,
                               .dgamma = dweight,
                               .h = h,
                               .rstd = rstd,
                               .gamma = weight,
                               .dy = dy,
                               .dh_in = dh,
                               .partial = partial,
                               .gamma_offset = a.weight_offset});
}

}  // namespace hpcdl
