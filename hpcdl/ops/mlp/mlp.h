#pragma once
// y = act(x W1^T + b1) W2^T + b2 + residual: the two layers of a transformer's MLP as one op, for training. The fusion
// avoids storing the gradient between the layers: the product that computes it multiplies by act'(z) before it writes.
//
// Operands as in linear.h: x (..., K); W1 (F, K), W2 (N, F), or (K, F), (F, N) with `conv1d`; biases and residual may
// be absent. z, the value before the activation, and h, the one after it, are kept for backward. On a CPU the bits
// equal those of two linear layers.

#include "hpcdl/ops/linear/linear.h"

namespace hpcdl {

struct Mlp {
  static constexpr std::string_view name = "mlp";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b100001;
  static constexpr int kAux = 2, kPasses = 5;  // dresidual = dy
  struct Args {
    Activation activation = Activation::gelu_tanh;
    bool conv1d = false;
    bool addend = false;  // as in LinearArgs, for b2 and residual
  };
  static LinearArgs first(const Args& a) { return {.activation = a.activation, .conv1d = a.conv1d}; }
  static LinearArgs second(const Args& a) { return {.conv1d = a.conv1d, .addend = a.addend}; }
  /// y, z, h.
  static std::array<Spec, 3> infer(const Spec& x, const Spec& w1, const Spec& b1, const Spec& w2, const Spec& b2,
                                   const Spec& residual, const Args& a) {
    require(a.activation != Activation::none, name, "needs an activation between its layers");
    const Spec z = linear_spec(name, x, w1, b1, {}, first(a));
    return {linear_spec(name, z, w2, b2, residual, second(a)), z, z};
  }
  static Cost cost(const Spec& x, const Spec& w1, const Spec& b1, const Spec& w2, const Spec& b2, const Spec& residual,
                   const Args& a) {
    Cost c = linear_cost(x, w1, b1, {}, false);
    return c += linear_cost(linear_spec(name, x, w1, b1, {}, first(a)), w2, b2, residual, a.addend);
  }
  static void forward(Stream& s, Tensor y, Tensor z, Tensor h, View x, View w1, View b1, View w2, View b2,
                      View residual, const Args& a);
  /// dz
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec& w1, const Spec& b1, const Spec& w2,
                                              const Spec& b2, const Spec& residual, const Args& a) {
    return {infer(x, w1, b1, w2, b2, residual, a)[1]};
  }
  static void backward(Stream& s, Grad dx, Grad dw1, Grad db1, Grad dw2, Grad db2, Grad dresidual, View x, View w1,
                       View w2, View z, View h, View dy, Tensor dz, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, dIn<4>, dIn<5>, In<0>, In<1>, In<3>, Out<1>, Out<2>,
                            dOut<0>, Scratch<0>>;
};

template <Symbolic V>
V mlp(const V& x, const V& w1, const V& b1, const V& w2, const V& b2, const V& residual, const Mlp::Args& a) {
  return record<Mlp>(a, x, w1, b1, w2, b2, residual);
}

}  // namespace hpcdl
