#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"

#include "hpcdl/ops/max_pool2d/pixels.h"

namespace hpcdl::cuda {
namespace {

/// Block: one row of pixels of y. Rows of a window are summed apart, so that no sum is long.
template <class T, bool kWhole> __global__ void __launch_bounds__(kMostThreads) pool(T* y, const T* x, std::int64_t y_stride, std::int64_t x_stride, Averages w) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.out;
  const int oh = static_cast<int>(row - image * w.h.out), h0 = w.h.begin(oh), h1 = w.h.end(oh);
  const T* from = x + image * w.h.in * w.w.in * x_stride;
  for_packs<N>(w.w.out, w.channels, [&](int ow, int c, int n) {
    const int w0 = w.w.begin(ow), w1 = w.w.end(ow);
    Lanes<N> sum(0.0f);
    for (int h = h0; h < h1; ++h) {
      Lanes<N> part(0.0f);
      const T* line = from + (h * w.w.in) * x_stride + c;
#pragma unroll 4
      for (int i = w0; i < w1; ++i) part = part + load_pack<kWhole>(line + i * x_stride, n);
      sum = sum + part;
    }
    store_pack<kWhole>(y + (row * w.w.out + ow) * y_stride + c, sum * Lanes<N>(1.0f / w.divisor(oh, ow)), n);
  });
}

/// Block: one row of pixels of dx.
template <class T, bool kWhole> __global__ void __launch_bounds__(kMostThreads)
    spread(T* dx, const T* dy, std::int64_t dx_stride, std::int64_t dy_stride, Averages w, bool add) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.in, first = image * w.h.out * w.w.out;
  const int h = static_cast<int>(row - image * w.h.in), h0 = w.h.first(h), h1 = w.h.last(h);
  for_packs<N>(w.w.in, w.channels, [&](int x, int c, int n) {
    const int w0 = w.w.first(x), w1 = w.w.last(x);
    Lanes<N> sum(0.0f);
    for (int oh = h0; oh < h1; ++oh)
      for (int ow = w0; ow < w1; ++ow)
        sum = fma(load_pack<kWhole>(dy + (first + oh * w.w.out + ow) * dy_stride + c, n), Lanes<N>(1.0f / w.divisor(oh, ow)), sum);
    store_pack<kWhole>(dx + (row * w.w.in + x) * dx_stride + c, sum, n, add);
  });
}

template <class T> bool whole(const Windows& w, const View& x, const View& y) {
  return whole_packs<T>(w.channels, {{x.data(), x.row_stride()}, {y.data(), y.row_stride()}});
}

}  // namespace

void avg_pool2d(Stream& s, Tensor y, View x, const Averages& w) {
  if (y.size() == 0) return;
  visit_dtype(x.dtype(), [&]<class T>() {
    const auto kernel = whole<T>(w, x, y) ? pool<T, true> : pool<T, false>;
    kernel<<<blocks_for(w.images * w.h.out, 1), threads_for(w.w.out, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(y.ptr<T>(), x.ptr<T>(), y.row_stride(),
                                                                                                                     x.row_stride(), w);
  });
  launched("avg_pool2d");
}

void avg_pool2d_backward(Stream& s, Grad dx, View dy, const Averages& w) {
  if (dx.size() == 0) return;
  visit_dtype(dx.dtype(), [&]<class T>() {
    const auto kernel = whole<T>(w, dx, dy) ? spread<T, true> : spread<T, false>;
    kernel<<<blocks_for(w.images * w.h.in, 1), threads_for(w.w.in, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(dx.ptr<T>(), dy.ptr<T>(), dx.row_stride(),
                                                                                                                   dy.row_stride(), w, dx.accumulate());
  });
  launched("avg_pool2d_backward");
}

}  // namespace hpcdl::cuda
