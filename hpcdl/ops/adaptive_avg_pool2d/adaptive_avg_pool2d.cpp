#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"

namespace hpcdl {

Averages AdaptiveAvgPool2d::windows(const Shape& x, const Args& a) {
  return {detail::bins(name, x, a.height, a.width)};
}

Spec AdaptiveAvgPool2d::infer(const Spec& x, const Args& a) {
  detail::require_image(name, x);
  return detail::pooled(x, windows(x.shape, a));
}

void AdaptiveAvgPool2d::forward(Stream& s, Tensor y, View x, const Args& a) {
  detail::run_avg_pool(s, y, x, windows(x.shape(), a));
}
void AdaptiveAvgPool2d::backward(Stream& s, Grad dx, View dy, const Args& a) {
  detail::run_avg_pool_backward(s, dx, dy, windows(dx.shape(), a));
}

}  // namespace hpcdl
