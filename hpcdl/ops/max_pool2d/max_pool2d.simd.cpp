#include "hpcdl/ops/max_pool2d/max_pool2d.h"

#include "hpcdl/ops/max_pool2d/bytes.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
namespace {

enum class Store { plain, add, past_cache };

/// One pixel of y. x: the image; [h0, h1) x [w0, w1): the window.
template <class Isa, class T, bool kWhich>
void pool_pixel(T* y, std::uint8_t* which, const T* x, std::int64_t stride, const Windows& w, int h0, int h1, int w0,
                int w1) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  loop<Isa>(w.channels, [&](std::int64_t c, auto k) {
    V best = load<V>(x + (h0 * w.w.in + w0) * stride + c, k), place(0.0f);
    float at = 0;
    for (auto h = h0; h < h1; ++h)
      for (auto i = w0; i < w1; ++i, ++at) {
        const V v = load<V>(x + (h * w.w.in + i) * stride + c, k);
        const auto number = best == best, stays = v <= best;  // NaN in v replaces best, NaN in best stays
        if constexpr (kWhich) place = select(number, select(stays, place, V(at)), place);
        best = select(number, select(stays, best, v), best);
      }
    store(y + c, best, k);
    if constexpr (kWhich) store_bytes(which + c, place, k);
  });
}

/// The contribution of a window to a pixel that it contains: dy if the largest value was at `place`.
template <class Isa, class T> struct Share {
  using V = simd::Vec<Isa>;
  const std::uint8_t* which;
  const T* dy;
  V place;
  Share(const std::uint8_t* places, const T* dys, std::int64_t stride, const Windows& w, int h, int x, int oh, int ow) {
    const int at = oh * w.w.out + ow, begin = w.w.begin(ow);
    which = places + at * w.channels, dy = dys + at * stride;
    place = V(static_cast<float>((h - w.h.begin(oh)) * (w.w.end(ow) - begin) + x - begin));
  }
  template <class Lanes> V at(std::int64_t c, Lanes k) const {
    return select(load_bytes<V>(which + c, k) == place, simd::load<V>(dy + c, k), V(0.0f));
  }
};

/// dx of one pixel: summed over the windows that contain it, in order.
template <class Isa, class T>
void scatter_pixel(T* dx, Store how, const std::uint8_t* which, const T* dy, std::int64_t stride, const Windows& w,
                   int h, int x) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const int h0 = w.h.first(h), h1 = w.h.last(h), w0 = w.w.first(x), w1 = w.w.last(x);
  const auto channels = w.channels;
  if (h1 - h0 == 1 && w1 - w0 == 1) {
    const Share<Isa, T> one(which, dy, stride, w, h, x, h0, w0);
    if (how == Store::add)
      loop<Isa>(channels, [&](std::int64_t c, auto k) { store(dx + c, load<V>(dx + c, k) + one.at(c, k), k); });
    else if (how == Store::past_cache)
      loop<Isa>(channels, [&](std::int64_t c, auto k) { stream(dx + c, one.at(c, k), k); });
    else loop<Isa>(channels, [&](std::int64_t c, auto k) { store(dx + c, one.at(c, k), k); });
    return;
  }
  loop<Isa>(channels, [&](std::int64_t c, auto k) {
    V sum(0.0f);
    for (int oh = h0; oh < h1; ++oh)
      for (int ow = w0; ow < w1; ++ow) sum = sum + Share<Isa, T>(which, dy, stride, w, h, x, oh, ow).at(c, k);
    store(dx + c, how == Store::add ? load<V>(dx + c, k) + sum : sum, k);
  });
}

}  // namespace

template <class Isa> void max_pool2d(Isa, Pool& pool, Tensor y, Tensor which, View x, const Windows& w) {
  const auto stride = x.row_stride(), to = y.row_stride();
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, w.images * w.h.out, w.w.in * w.channels * (w.h.in / w.h.out + 1),
             [&](std::int64_t begin, std::int64_t end) {
               for (auto r = begin; r < end; ++r) {
                 const T* image = x.ptr<T>() + r / w.h.out * w.h.in * w.w.in * stride;
                 const int oh = static_cast<int>(r % w.h.out), h0 = w.h.begin(oh), h1 = w.h.end(oh);
                 for (int o = 0; o < w.w.out; ++o) {
                   const auto at = r * w.w.out + o;
                   const auto run = which ? pool_pixel<Isa, T, true> : pool_pixel<Isa, T, false>;
                   run(y.ptr<T>() + at * to, which ? which.ptr<std::uint8_t>() + at * w.channels : nullptr, image,
                       stride, w, h0, h1, w.w.begin(o), w.w.end(o));
                 }
               }
             });
  });
}

template <class Isa> void max_pool2d_backward(Isa, Pool& pool, Grad dx, View which, View dy, const Windows& w) {
  const auto stride = dy.row_stride(), to = dx.row_stride();
  const Store how = dx.accumulate() ? Store::add : goes_past_cache(dx) ? Store::past_cache : Store::plain;
  visit_dtype(dx.dtype(), [&]<class T>() {
    for_rows(pool, w.images * w.h.in, w.w.in * w.channels, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto first = r / w.h.in * w.h.out * w.w.out;  // pixel of y
        for (int i = 0; i < w.w.in; ++i)
          scatter_pixel<Isa>(dx.ptr<T>() + (r * w.w.in + i) * to, how, which.ptr<std::uint8_t>() + first * w.channels,
                             dy.ptr<T>() + first * stride, stride, w, static_cast<int>(r % w.h.in), i);
      }
      if (how == Store::past_cache) simd::stream_fence<Isa>();
    });
  });
}

template void max_pool2d(simd::Isa, Pool&, Tensor, Tensor, View, const Windows&);
template void max_pool2d_backward(simd::Isa, Pool&, Grad, View, View, const Windows&);

}  // namespace hpcdl::cpu
