#include "hpcdl/ops/mlp/mlp.h"

#include "hpcdl/program/on.h"

namespace hpcdl {

void Mlp::forward(Stream& s, Tensor y, Tensor z, Tensor h, View x, View w1, View b1, View w2, View b2, View residual,
                  const Args& a) {
  require((z && h) || y.size() == 0, name,
          "keeps the values between its layers for a backward pass: without one, record two linear layers");
  if (a.addend) b2 = residual = View();
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::linear(isa, pool, h, z, x, w1, b1, View(), first(a), s.numerics());
        cpu::linear(isa, pool, y, Tensor(), h, w2, b2, residual, second(a), s.numerics());
      },
      [&](auto& q) {
        cuda::linear(q, h, z, x, w1, b1, View(), first(a));
        cuda::linear(q, y, Tensor(), h, w2, b2, residual, second(a));
      });
}

void Mlp::backward(Stream& s, Grad dx, Grad dw1, Grad db1, Grad dw2, Grad db2, Grad dresidual, View x, View w1, View w2,
                   View z, View h, View dy, Tensor dz, const Args& a) {
  const LinearGradients outer{.dx = Grad(dz, Write::overwrite),
                              .dw = dw2,
                              .dbias = db2,
                              .dresidual = dresidual,
                              .x = h,
                              .w = w2,
                              .z = {},
                              .dy = dy,
                              .dz = {}};
  const LinearGradients inner{.dx = dx,
                              .dw = dw1,
                              .dbias = db1,
                              .dresidual = {},
                              .x = x,
                              .w = w1,
                              .z = z,
                              .dy = dz,
                              .dz = dz};  // dh is replaced by dh act'(z) in place
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::linear_backward(isa, pool, outer, second(a), s.numerics());
        cpu::linear_backward(isa, pool, inner, first(a), s.numerics());
      },
      [&](auto& q) {
        auto through = outer;  // the product writes dz directly: dh is never stored
        through.x_z = z, through.x_activation = a.activation;
        auto plain = inner;
        plain.z = {}, plain.dz = {};
        cuda::linear_backward(q, through, second(a));
        cuda::linear_backward(q, plain, second(a));
      });
}

}  // namespace hpcdl
