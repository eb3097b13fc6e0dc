#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// One pixel of y. x: the image; [h0, h1) x [w0, w1): the window. Each row of the window is summed separately, so that
/// no sum is long.
template <class Isa, class T>
void pool_pixel(T* y, const T* x, std::int64_t stride, const Averages& w, float over, int h0, int h1, int w0, int w1) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto registers = [&]<int K>(std::int64_t c, auto k) {
    V sum[K];
    for (auto& s : sum) s = V(0.0f);
    for (auto h = h0; h < h1; ++h) {
      V row[K];
      for (auto& r : row) r = V(0.0f);
      for (auto i = w0; i < w1; ++i)
        for (int j = 0; j < K; ++j) row[j] = row[j] + load<V>(x + (h * w.w.in + i) * stride + c + j * V::N, k);
      for (int j = 0; j < K; ++j) sum[j] = sum[j] + row[j];
    }
    for (int j = 0; j < K; ++j) store(y + c + j * V::N, sum[j] * V(over), k);
  };
  std::int64_t c = 0;
  for (; c + 4 * V::N <= w.channels; c += 4 * V::N) registers.template operator()<4>(c, Whole{});
  loop<Isa>(w.channels - c, [&](std::int64_t i, auto k) { registers.template operator()<1>(c + i, k); });
}

template <class Isa, class T>
void spread_pixel(T* dx, bool add, const T* dy, std::int64_t stride, const Averages& w, int h, int x) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const int h0 = w.h.first(h), h1 = w.h.last(h), w0 = w.w.first(x), w1 = w.w.last(x);
  const auto share = [&](int oh, int ow, float over, std::int64_t c, auto k) {
    return load<V>(dy + (oh * w.w.out + ow) * stride + c, k) * V(over);
  };
  const auto put = [&](std::int64_t c, V v, auto k) { store(dx + c, add ? load<V>(dx + c, k) + v : v, k); };
  if (h1 - h0 == 1 && w1 - w0 == 1) {
    const float over = 1.0f / w.divisor(h0, w0);
    return loop<Isa>(w.channels, [&](std::int64_t c, auto k) { put(c, share(h0, w0, over, c, k), k); });
  }
  loop<Isa>(w.channels, [&](std::int64_t c, auto k) {
    V sum(0.0f);
    for (auto oh = h0; oh < h1; ++oh)
      for (auto ow = w0; ow < w1; ++ow) sum = sum + share(oh, ow, 1.0f / w.divisor(oh, ow), c, k);
    put(c, sum, k);
  });
}

}  // namespace

template <class Isa> void avg_pool2d(Isa, Pool& pool, Tensor y, View x, const Averages& w) {
  const auto stride = x.row_stride(), to = y.row_stride();
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, w.images * w.h.out, w.w.in * w.channels * (w.h.in / w.h.out + 1),
             [&](std::int64_t begin, std::int64_t end) {
               for (auto r = begin; r < end; ++r) {
                 const T* image = x.ptr<T>() + r / w.h.out * w.h.in * w.w.in * stride;
                 const int oh = static_cast<int>(r % w.h.out);
                 for (int o = 0; o < w.w.out; ++o)
                   pool_pixel<Isa>(y.ptr<T>() + (r * w.w.out + o) * to, image, stride, w, 1.0f / w.divisor(oh, o),
                                   w.h.begin(oh), w.h.end(oh), w.w.begin(o), w.w.end(o));
               }
             });
  });
}

template <class Isa> void avg_pool2d_backward(Isa, Pool& pool, Grad dx, View dy, const Averages& w) {
  const auto stride = dy.row_stride(), to = dx.row_stride();
  visit_dtype(dx.dtype(), [&]<class T>() {
    for_rows(pool, w.images * w.h.in, w.w.in * w.channels, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* image = dy.ptr<T>() + r / w.h.in * w.h.out * w.w.out * stride;
        for (int i = 0; i < w.w.in; ++i)
          spread_pixel<Isa>(dx.ptr<T>() + (r * w.w.in + i) * to, dx.accumulate(), image, stride, w,
                            static_cast<int>(r % w.h.in), i);
      }
    });
  });
}

template void avg_pool2d(simd::Isa, Pool&, Tensor, View, const Averages&);
template void avg_pool2d_backward(simd::Isa, Pool&, Grad, View, const Averages&);

}  // namespace hpcdl::cpu
