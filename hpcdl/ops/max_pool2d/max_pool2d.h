#pragma once
// The largest value of each window of an image, per channel.
//
// x: (N, H, W, C), y: (N, OH, OW, C), f32, bf16 or f16; pixels may be strided. OH = floor((H + 2 pad - kernel) /
// stride) + 1. The first of equal values wins; NaN counts as largest, as in torch. Kept for backward instead of x: the
// index of each y within its window, row by row in the part of the window inside the image, as u8 (windows of at most
// 256 elements).

#include "hpcdl/op.h"
#include "hpcdl/ops/windows.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace cpu {
/// `which` may be absent.
template <class Isa> void max_pool2d(Isa, Pool&, Tensor y, Tensor which, View x, const Windows&);
template <class Isa> void max_pool2d_backward(Isa, Pool&, Grad dx, View which, View dy, const Windows&);
}  // namespace cpu
namespace cuda {
void max_pool2d(Stream&, Tensor y, Tensor which, View x, const Windows&);
void max_pool2d_backward(Stream&, Grad dx, View which, View dy, const Windows&);
}  // namespace cuda

namespace detail {

inline void run_max_pool(Stream& s, Tensor y, Tensor which, View x, const Windows& w) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::max_pool2d(isa, pool, y, which, x, w); },
      [&](auto& q) { cuda::max_pool2d(q, y, which, x, w); });
}
inline void run_max_pool_backward(Stream& s, Grad dx, View which, View dy, const Windows& w) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::max_pool2d_backward(isa, pool, dx, which, dy, w); },
      [&](auto& q) { cuda::max_pool2d_backward(q, dx, which, dy, w); });
}
/// y and the index of each maximum.
inline std::array<Spec, 2> max_pooled(std::string_view op, const Spec& x, const Windows& w) {
  require(w.h.widest() * w.w.widest() <= 256, op, "windows of {} x {} pixels are too large: at most 256 pixels",
          w.h.widest(), w.w.widest());
  const Spec y = pooled(x, w);
  return {y, Spec{y.shape, DType::u8}};
}
inline Cost max_pool_cost(const Spec& x, const Windows& w) {
  return {.operations = static_cast<double>(w.h.widest() * w.w.widest() * pooled(x, w).size())};
}

}  // namespace detail

struct MaxPool2d {
  static constexpr std::string_view name = "max_pool2d";
  static constexpr int kAux = 1;
  using Args = PoolArgs;
  static std::array<Spec, 2> infer(const Spec& x, const Args& a) {
    detail::require_image(name, x);
    return detail::max_pooled(name, x, detail::windows(name, x.shape, a));
  }
  static Cost cost(const Spec& x, const Args& a) { return detail::max_pool_cost(x, detail::windows(name, x.shape, a)); }
  static void forward(Stream& s, Tensor y, Tensor which, View x, const Args& a) {
    detail::run_max_pool(s, y, which, x, detail::windows(name, x.shape(), a));
  }
  static void backward(Stream& s, Grad dx, View which, View dy, const Args& a) {
    detail::run_max_pool_backward(s, dx, which, dy, detail::windows(name, dx.shape(), a));
  }
  using Backward = Operands<dIn<0>, Out<1>, dOut<0>>;
};

/// One window per output pixel (WindowAxis defines them).
struct AdaptiveMaxPool2d {
  static constexpr std::string_view name = "adaptive_max_pool2d";
  static constexpr int kAux = 1;
  struct Args {
    int height = 1, width = 1;
  };
  static std::array<Spec, 2> infer(const Spec& x, const Args& a) {
    detail::require_image(name, x);
    return detail::max_pooled(name, x, detail::bins(name, x.shape, a.height, a.width));
  }
  static Cost cost(const Spec& x, const Args& a) {
    return detail::max_pool_cost(x, detail::bins(name, x.shape, a.height, a.width));
  }
  static void forward(Stream& s, Tensor y, Tensor which, View x, const Args& a) {
    detail::run_max_pool(s, y, which, x, detail::bins(name, x.shape(), a.height, a.width));
  }
  static void backward(Stream& s, Grad dx, View which, View dy, const Args& a) {
    detail::run_max_pool_backward(s, dx, which, dy, detail::bins(name, dx.shape(), a.height, a.width));
  }
  using Backward = Operands<dIn<0>, Out<1>, dOut<0>>;
};

template <Symbolic V> V max_pool2d(const V& x, MaxPool2d::Args a = {}) { return record<MaxPool2d>(a, x); }
template <Symbolic V> V adaptive_max_pool2d(const V& x, AdaptiveMaxPool2d::Args a = {}) {
  return record<AdaptiveMaxPool2d>(a, x);
}

}  // namespace hpcdl
