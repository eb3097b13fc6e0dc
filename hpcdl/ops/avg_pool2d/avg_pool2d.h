#pragma once
// The mean of each window of an image, per channel.
//
// x: (N, H, W, C), y: (N, OH, OW, C), f32, bf16 or f16; pixels may be strided. OH = floor((H + 2 pad - kernel) /
// stride) + 1. Sums are taken in f32. As in torch, padding counts as zeros unless count_include_pad is false: then a
// mean is over the pixels that exist.

#include "hpcdl/op.h"
#include "hpcdl/ops/windows.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// The divisor of a sum: `fixed`, or if that is 0 the number of pixels of the window inside the image.
struct Averages : Windows {
  int fixed = 0;
  [[gnu::always_inline]] HPCDL_HOST_DEVICE float divisor(int oh, int ow) const {
    return static_cast<float>(fixed ? fixed : (h.end(oh) - h.begin(oh)) * (w.end(ow) - w.begin(ow)));
  }
};

namespace cpu {
template <class Isa> void avg_pool2d(Isa, Pool&, Tensor y, View x, const Averages&);
template <class Isa> void avg_pool2d_backward(Isa, Pool&, Grad dx, View dy, const Averages&);
}  // namespace cpu
namespace cuda {
void avg_pool2d(Stream&, Tensor y, View x, const Averages&);
void avg_pool2d_backward(Stream&, Grad dx, View dy, const Averages&);
}  // namespace cuda

namespace detail {

inline void run_avg_pool(Stream& s, Tensor y, View x, const Averages& w) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::avg_pool2d(isa, pool, y, x, w); },
      [&](auto& q) { cuda::avg_pool2d(q, y, x, w); });
}
inline void run_avg_pool_backward(Stream& s, Grad dx, View dy, const Averages& w) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::avg_pool2d_backward(isa, pool, dx, dy, w); },
      [&](auto& q) { cuda::avg_pool2d_backward(q, dx, dy, w); });
}
inline Cost avg_pool_cost(const Spec& x, const Windows& w) {
  return {.operations = static_cast<double>(w.h.widest() * w.w.widest() * pooled(x, w).size())};
}

}  // namespace detail

struct AvgPool2d {
  static constexpr std::string_view name = "avg_pool2d";
  struct Args {
    int kernel = 2, stride = 0, pad = 0;  // stride 0: equal to the kernel size
    bool count_include_pad = true;
  };
  static Averages windows(const Shape& x, const Args& a) {
    return {detail::windows(name, x, {a.kernel, a.stride, a.pad}), a.count_include_pad ? a.kernel * a.kernel : 0};
  }
  static Spec infer(const Spec& x, const Args& a) {
    detail::require_image(name, x);
    require(a.kernel < detail::kMostPixels, name, "a kernel of {} pixels is too large", a.kernel);
    return detail::pooled(x, windows(x.shape, a));
  }
  static Cost cost(const Spec& x, const Args& a) { return detail::avg_pool_cost(x, windows(x.shape, a)); }
  static void forward(Stream& s, Tensor y, View x, const Args& a) {
    detail::run_avg_pool(s, y, x, windows(x.shape(), a));
  }
  static void backward(Stream& s, Grad dx, View dy, const Args& a) {
    detail::run_avg_pool_backward(s, dx, dy, windows(dx.shape(), a));
  }
  using Backward = Operands<dIn<0>, dOut<0>>;
};

template <Symbolic V> V avg_pool2d(const V& x, AvgPool2d::Args a = {}) { return record<AvgPool2d>(a, x); }

}  // namespace hpcdl
