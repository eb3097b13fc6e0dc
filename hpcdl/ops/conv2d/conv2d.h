#pragma once
// y = x * w + bias: convolution of images (cross-correlation, as in every framework), padded with zeros.
//
// x (N, H, W, I) and y (N, OH, OW, O) channels last; w (O, KH, KW, I); bias (O) may be absent. x and y have one float
// dtype; w and bias may be f32 with 16-bit activations (an f32 weight is rounded when the product reads it); sums are
// f32.
//   OH = (H + 2 pad - dilation (KH - 1) - 1) / stride + 1, OW likewise
//   y[n, p, q, o] = bias[o] + sum over (r, s, i) of x[n, p stride - pad + r dilation, q stride - pad + s dilation, i]
//                                                   w[o, r, s, i]
// Gradients: dx = the transposed convolution of dy, dw = correlation of dy with x over all pixels, dbias = sums of dy
// over pixels.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// Sizes and steps of one convolution.
struct Conv2dShape {
  std::int64_t n = 0, h = 0, w = 0, i = 0;  // images, rows, columns and channels of x
  std::int64_t oh = 0, ow = 0, o = 0;       // rows, columns and channels of y
  std::int64_t kh = 0, kw = 0;              // rows and columns of the kernel
  std::int64_t stride = 1, pad = 0, dilation = 1;

  std::int64_t pixels() const { return n * oh * ow; }  // of y
  std::int64_t taps() const { return kh * kw; }
  /// The number of terms of one output.
  std::int64_t k() const { return kh * kw * i; }
  double flops() const {
    return 2.0 * static_cast<double>(pixels()) * static_cast<double>(o) * static_cast<double>(k());
  }
};

struct Conv2d {
  static constexpr std::string_view name = "conv2d";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1;  // x: w is rounded when read, its gradient stays f32
  static constexpr int kSplits = 1;        // dw only
  struct Args {
    int stride = 1, pad = 0, dilation = 1;
  };
  /// Precondition: infer() accepts the operands.
  static Conv2dShape shape(const Spec& x, const Spec& w, const Args& a);
  static Spec infer(const Spec& x, const Spec& w, const Spec& bias, const Args& a);
  static Cost cost(const Spec& x, const Spec& w, const Spec&, const Args& a) {
    return {.operations = shape(x, w, a).flops()};
  }
  static void forward(Stream& s, Tensor y, View x, View w, View bias, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, In<0>, In<1>, dOut<0>>;
};

namespace cpu {
template <class Isa> void conv2d(Isa, Pool&, Tensor y, View x, View w, View bias, const Conv2dShape& c);
template <class Isa>
void conv2d_backward(Isa, Pool&, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Conv2dShape& c);
}  // namespace cpu
namespace cuda {
void conv2d(Stream&, Tensor y, View x, View w, View bias, const Conv2d::Args& a);
void conv2d_backward(Stream&, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Conv2d::Args& a);
}  // namespace cuda

inline Conv2dShape Conv2d::shape(const Spec& x, const Spec& w, const Args& a) {
  const auto outputs = [&](std::int64_t size, std::int64_t kernel) {
    const std::int64_t room = size + 2 * std::int64_t{a.pad} - a.dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / a.stride + 1;
  };
  return {.n = x[0],
          .h = x[1],
          .w = x[2],
          .i = x[3],
          .oh = outputs(x[1], w[1]),
          .ow = outputs(x[2], w[2]),
          .o = w[0],
          .kh = w[1],
          .kw = w[2],
          .stride = a.stride,
          .pad = a.pad,
          .dilation = a.dilation};
}

inline Spec Conv2d::infer(const Spec& x, const Spec& w, const Spec& bias, const Args& a) {
  require_float(name, x, "x"), require_float(name, w, "weight");
  require(x.shape.rank() == 4, name, "x must be images (N, H, W, channels), got {}", to_string(x));
  require(w.shape.rank() == 4 && w[3] == x[3], name, "weight must be (outputs, KH, KW, {}) for x {}, got {}", x[3],
          to_string(x), to_string(w));
  require(w[0] >= 1 && w[1] >= 1 && w[2] >= 1 && w[3] >= 1, name, "weight must have no empty dimension, got {}",
          to_string(w));
  require(a.stride >= 1 && a.dilation >= 1 && a.pad >= 0, name,
          "stride and dilation must be at least 1 and pad at least 0, got stride {}, dilation {}, pad {}", a.stride,
          a.dilation, a.pad);
  const Conv2dShape c = shape(x, w, a);
  require(c.oh >= 1 && c.ow >= 1, name,
          "a kernel of {} x {} with dilation {} does not fit into images of {} x {} with pad {}: use larger images or "
          "more pad",
          c.kh, c.kw, c.dilation, c.h, c.w, c.pad);
  if (bias) require_shape(name, "bias", require_float(name, bias, "bias"), {c.o});
  return {{c.n, c.oh, c.ow, c.o}, x.dtype};
}

inline void Conv2d::forward(Stream& s, Tensor y, View x, View w, View bias, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::conv2d(isa, pool, y, x, w, bias, shape(x.spec(), w.spec(), a)); },
      [&](auto& q) { cuda::conv2d(q, y, x, w, bias, a); });
}
inline void Conv2d::backward(Stream& s, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::conv2d_backward(isa, pool, dx, dw, dbias, x, w, dy, shape(x.spec(), w.spec(), a));
      },
      [&](auto& q) { cuda::conv2d_backward(q, dx, dw, dbias, x, w, dy, a); });
}

/// bias may be default (absent).
template <Symbolic V> V conv2d(const V& x, const V& w, const V& bias = {}, Conv2d::Args a = {}) {
  return record<Conv2d>(a, x, w, bias);
}

}  // namespace hpcdl
