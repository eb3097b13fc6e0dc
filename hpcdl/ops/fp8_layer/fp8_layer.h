#pragma once
// y = x W^T + bias + residual in a training step whose products are of 8-bit floats, with their gradients.
//
// x (..., K), bf16 or f16, and y (..., N) alike; W (N, K), or (K, N) with `conv1d`; bias (N) and residual like y may be
// absent. x and W are operands for their gradients alone. What is multiplied are their casts (ops/fp8_cast): those of x,
// qx (..., K) and qxt (K, M), and those of W, qw (N, K) and qwt (K, N), all in E4M3 and with the scales of their rows or
// of the tensor. M, the rows of x, K and N are multiples of 16. Gradients, with dy rounded to E5M2:
//
//   dx = q(dy) qwt^T    dW = qt(dy) qxt^T    dbias = the column sums of dy    dresidual = dy
//
// Sums are f32, and dW is never rounded. With a history (ops/fp8_amax), whose columns 3 `layer`, + 1 and + 2 are those of
// x, W and dy, backward reads the scale of dy from it, and adds the magnitudes of all three.

#include "hpcdl/ops/fp8_amax/fp8_amax.h"
#include "hpcdl/ops/fp8_cast/fp8_cast.h"
#include "hpcdl/ops/fp8_linear/fp8_linear.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct Fp8Layer {
  static constexpr std::string_view name = "fp8_layer";
  static constexpr int kPasses = 3;  // dresidual = dy
  struct Args {
    Fp8Scaling scaling = Fp8Scaling::tensor;
    bool conv1d = false;
    bool addend = false;  // as in LinearArgs
    std::int32_t layer = 0;
  };
  static Spec infer(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Spec& qx,
                    const Spec& sx, const Spec& qxt, const Spec& sxt, const Spec& qw, const Spec& sw, const Spec& qwt,
                    const Spec& swt, const Spec& history, const Spec& amax_x, const Spec& amax_w, const Args& a);
  static Cost cost(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Spec& qx, const Spec& sx,
                   const Spec& qxt, const Spec& sxt, const Spec& qw, const Spec& sw, const Spec& qwt, const Spec& swt,
                   const Spec& history, const Spec& amax_x, const Spec& amax_w, const Args& a);
  static void forward(Stream& s, Tensor y, View x, View w, View bias, View residual, View qx, View sx, View qxt,
                      View sxt, View qw, View sw, View qwt, View swt, View history, View amax_x, View amax_w,
                      const Args& a);
  template <class G> static void record_backward(G& g, std::span<const Operand> o, const Args& a);
  using Backward =
      Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<6>, In<7>, In<10>, In<11>, In<12>, In<13>, In<14>, dOut<0>>;
};

/// One of its products: d = (a b^T) * scales, or d += where the operand is updated. A raw record of d, a, b and the
/// scales of both.
struct Fp8Gradient {
  static constexpr std::string_view name = "fp8_gradient";
  static Cost cost(const Spec& a, const Spec& b);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*);
};

/// What dy gives to bias and residual. A raw record of dbias and dresidual, either of which may be absent, and dy.
struct Fp8LayerSums {
  static constexpr std::string_view name = "fp8_layer.sums";
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*);
};

template <class G> void Fp8Layer::record_backward(G& g, std::span<const Operand> o, const Args& a) {
  const Operand &dx = o[0], &dw = o[1], &dbias = o[2], &dresidual = o[3], &qxt = o[4], &sxt = o[5], &qwt = o[6],
                &swt = o[7], &history = o[8], &amax_x = o[9], &amax_w = o[10], &dy = o[11];
  if (dbias.slot >= 0 || dresidual.slot >= 0) {
    const Operand sums[] = {dbias, dresidual, dy};
    g.template emit<Fp8LayerSums>(sums, nullptr, 0, {}, Phase::backward);
  }
  if (dx.slot < 0 && dw.slot < 0) return;
  const bool by_rows = a.scaling == Fp8Scaling::row;
  const Fp8Cast::Args cast{DType::f8_e5m2, a.scaling, dw.slot >= 0, 3 * a.layer + 2};
  const auto specs = Fp8Cast::infer(dy.spec, history.slot < 0 ? Spec() : history.spec, cast);
  const auto q = g.temporary("fp8_layer.dy", specs[0]), qt = g.temporary("fp8_layer.dyt", specs[1]),
             scales = g.temporary("fp8_layer.scales", specs[2]), amax = g.temporary("fp8_layer.amax", specs[3]);
  const Operand rounded[] = {write_operand(q), write_operand(qt), write_operand(scales), write_operand(amax), dy,
                             history};
  emit_op<Fp8Cast>(g, rounded, cast);
  const std::int64_t n = dy.spec[-1], m = dy.spec.size() / n;
  const auto product = [&](const Operand& d, const Operand& l, const Operand& ls, const Operand& r, const Operand& rs) {
    const Operand list[] = {d, l, r, ls, rs};
    g.template emit<Fp8Gradient>(list, nullptr, 0, Fp8Gradient::cost(l.spec, r.spec), Phase::backward);
  };
  if (dx.slot >= 0) product(dx, read_operand(q), read_operand(by_rows ? g.slice(scales, 0, m) : scales), qwt, swt);
  if (dw.slot >= 0) {
    const Operand dyt = read_operand(qt), st = read_operand(by_rows ? g.slice(scales, m, n) : scales);
    if (a.conv1d) product(dw, qxt, sxt, dyt, st);
    else product(dw, dyt, st, qxt, sxt);
  }
  if (history.slot >= 0) record_fp8_amax(g, history, 3 * a.layer, amax_x, amax_w, read_operand(amax));
}

/// A tensor and its casts, as operands of fp8_layer.
template <Symbolic V> struct Fp8Operand {
  V q, q_scale, qt, qt_scale, amax;

  /// With the cast and its transposed swapped.
  Fp8Operand transposed() const { return {qt, qt_scale, q, q_scale, amax}; }
};

/// `x` (M rows) or W, cast. `both`: for backward, or if the transposed one is read in forward.
template <class G, Symbolic V> Fp8Operand<V> fp8_operand(G& g, const V& x, const Fp8Cast::Args& a, const V& history) {
  const auto [q, qt, scales, amax] = fp8_cast(x, a, history);
  if (a.scaling != Fp8Scaling::row || !a.both) return {q, scales, qt, scales, amax};
  const std::int64_t k = x[-1], m = x.shape().size() / k;
  return {q, g.slice(scales, 0, m), qt, g.slice(scales, m, k), amax};
}

/// `qw`: of (N, K), whatever the layout of w. bias, residual and history may be default (absent).
template <Symbolic V>
V fp8_layer(const V& x, const V& w, const V& bias, const V& residual, const Fp8Operand<V>& qx, const Fp8Operand<V>& qw,
            const V& history, const Fp8Layer::Args& a) {
  return record<Fp8Layer>(a, x, w, bias, residual, qx.q, qx.q_scale, qx.qt, qx.qt_scale, qw.q, qw.q_scale, qw.qt,
                          qw.qt_scale, history, qx.amax, qw.amax);
}

}  // namespace hpcdl
