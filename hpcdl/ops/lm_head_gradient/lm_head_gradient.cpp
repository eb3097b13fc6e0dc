#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"

#include "hpcdl/core/error.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

void LmHeadGradient::forward(Stream& s, Tensor loss, Tensor count, Tensor dh, Tensor dw, View h, View w, View targets,
                             Tensor logits, Tensor stats, const Args& a) {
  if (a.frozen) dw = Tensor();
  const auto rows = h.rows();
  on(
      s,
      [&](auto isa, Pool& pool) {
        const Tensor chunk(logits.data(), {{rows, LmHeadLoss::chunk(rows, w[0])}, DType::f32}),
            lse(stats.data(), {{2, rows}, DType::f32});
        const Tensor sum(chunk.ptr<float>() + chunk.size(), {h.shape(), DType::f32});
        cpu::lm_head_loss(isa, pool, loss, count, lse, Tensor(), h, w, targets, chunk,
                          Tensor(stats.ptr<float>() + 2 * rows, {{4, rows}, DType::f32}), s.numerics());
        if (dh || dw)
          cpu::lm_head_loss_backward(isa, pool, Grad(dh, Write::overwrite), Grad(dw, Write::overwrite), h, w, targets,
                                     lse, View(), 1.0f, chunk, sum, s.numerics());
      },
      [&](auto& q) { cuda::lm_head_gradient(q, loss, count, dh, dw, h, w, targets, logits, stats); });
}

void LmHeadGradient::backward(Stream& s, Grad dh, Grad dw, View unit_dh, View unit_dw, View dloss, const Args& a) {
  require(!dw || !a.frozen, name, "the weights are frozen, but a gradient of them was asked for");
  const auto both = [&](auto&& scale) {
    if (dh) scale(dh, unit_dh);
    if (dw) scale(dw, unit_dw);
  };
  on(
      s,
      [&](auto isa, Pool& pool) {
        both([&](const Grad& to, const View& from) {
          cpu::scale_gradient(isa, pool, to, from, dloss ? *dloss.ptr<float>() : 0.0f);
        });
      },
      [&](auto& q) {
        both(
            [&](const Grad& to, const View& from) { cuda::scale_gradient(q, to, from, dloss, unit(unit_dh.dtype())); });
      });
}

}  // namespace hpcdl
