#include "hpcdl/ops/conv2d/conv2d.h"

#include "hpcdl/ops/conv2d/gather.h"
#include "hpcdl/ops/conv2d/weight_gradient.h"
#include "hpcdl/ops/conv2d/winograd.h"
#include "hpcdl/ops/conv2d/winograd_weight.h"

namespace hpcdl::cpu {
namespace {

using namespace conv;

const std::byte* bytes(const View& v) { return static_cast<const std::byte*>(v.data()); }

template <class Isa, class T>
void gather(Pool& pool, const Conv2dShape& c, const Images& x, const Weights& w, const Outputs<T>& y) {
  if constexpr (std::is_same_v<T, float>)
    if (fits_winograd(c)) return Winograd<Isa>(pool, x, w, y).run();
  Gather<Isa, gemm::compute_of(dtype_of<T>), T>(pool, x, w, y).run();
}

Images images_of_x(const Conv2dShape& c, const View& x) {
  return {.data = bytes(x),
          .dtype = x.dtype(),
          .n = c.n,
          .channels = c.i,
          .rows = forward_axis(c.h, c.oh, c.kh, c),
          .cols = forward_axis(c.w, c.ow, c.kw, c)};
}

template <class Isa, class T>
void backward_x(Pool& pool, const Conv2dShape& c, const Grad& dx, const View& w, const View& dy) {
  const Weights weights{.data = bytes(w), .dtype = w.dtype(), .tap = c.i, .channel = c.k(), .output = 1, .width = c.kw};
  const Outputs<T> y{.data = dx.ptr<T>(),
                     .height = c.h,
                     .width = c.w,
                     .channels = c.i,
                     .accumulate = dx.accumulate(),
                     .stream = c.stride == 1 && goes_past_cache(dx)};
  for (std::int64_t p = 0; p < c.stride; ++p)
    for (std::int64_t q = 0; q < c.stride; ++q) {
      const Axis rows = backward_axis(c.h, c.oh, c.kh, c, p), cols = backward_axis(c.w, c.ow, c.kw, c, q);
      if (rows.outputs > 0 && cols.outputs > 0)
        gather<Isa, T>(pool, c,
                       {.data = bytes(dy), .dtype = dy.dtype(), .n = c.n, .channels = c.o, .rows = rows, .cols = cols},
                       weights, y);
    }
}

}  // namespace

template <class Isa> void conv2d(Isa, Pool& pool, Tensor y, View x, View w, View bias, const Conv2dShape& c) {
  const Weights weights{.data = bytes(w), .dtype = w.dtype(), .tap = c.i, .channel = 1, .output = c.k(), .width = c.kw};
  visit_dtype(x.dtype(), [&]<class T>() {
    gather<Isa, T>(pool, c, images_of_x(c, x), weights,
                   {.data = y.ptr<T>(),
                    .height = c.oh,
                    .width = c.ow,
                    .channels = c.o,
                    .bias = bias,
                    .stream = goes_past_cache(y)});
  });
}

template <class Isa>
void conv2d_backward(Isa, Pool& pool, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Conv2dShape& c) {
  visit_dtype(x.dtype(), [&]<class T>() {
    if (dx) backward_x<Isa, T>(pool, c, dx, w, dy);
    const Images images = images_of_x(c, x);
    if constexpr (std::is_same_v<T, float>)
      if (dw && fits_winograd(c)) return WinogradWeights<Isa>(pool, images, dy.ptr<T>(), c.o, dw, dbias).run();
    if (dw || dbias) WeightGradient<Isa, T>(pool, images, dy.ptr<T>(), c.o, dw, dbias).run();
  });
}

template void conv2d(simd::Isa, Pool&, Tensor, View, View, View, const Conv2dShape&);
template void conv2d_backward(simd::Isa, Pool&, Grad, Grad, Grad, View, View, View, const Conv2dShape&);

}  // namespace hpcdl::cpu
