#pragma once
// avg_pool2d with one window per output pixel for any image size (WindowAxis defines the windows).
//
// x: (N, H, W, C), y: (N, height, width, C), f32, bf16 or f16. A 1 x 1 output is the mean of the image.

#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"

namespace hpcdl {

struct AdaptiveAvgPool2d {
  static constexpr std::string_view name = "adaptive_avg_pool2d";
  struct Args {
    int height = 1, width = 1;
  };
  static Averages windows(const Shape& x, const Args& a);
  static Spec infer(const Spec& x, const Args& a);
  static Cost cost(const Spec& x, const Args& a) { return detail::avg_pool_cost(x, windows(x.shape, a)); }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

template <Symbolic V> V adaptive_avg_pool2d(const V& x, AdaptiveAvgPool2d::Args a = {}) {
  return record<AdaptiveAvgPool2d>(a, x);
}

}  // namespace hpcdl
