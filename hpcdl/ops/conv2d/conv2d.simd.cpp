#include "hpcdl/ops/conv2d/conv2d.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// Channels whose sums are kept at a time.
constexpr std::int64_t kChannels = 256;

/// f(first, count) over pieces of `channels`.
template <class F>
void for_pieces(std::int64_t channels, F&& f) {
  for (std::int64_t c = 0; c < channels; c += kChannels) f(c, channels - c < kChannels ? channels - c : kChannels);
}

/// The input row (or column) that tap r of output p reads; outside [0, size) it is a zero.
std::int64_t input_of(const Conv2dShape& c, std::int64_t p, std::int64_t r) { return p * c.stride - c.pad + r * c.dilation; }

/// sums[0, n) += scale * p[0, n)
template <class Isa, class T>
void add_scaled(float* sums, const T* p, float scale, std::int64_t n) {
  using V = simd::Vec<Isa>;
  simd::loop<Isa>(n, [&](std::int64_t i, auto lanes) { simd::store(sums + i, fma(V(scale), simd::load<V>(p + i, lanes), simd::load<V>(sums + i, lanes)), lanes); });
}

template <class Isa, class T>
void put(T* to, const float* sums, std::int64_t n, bool accumulate) {
  using V = simd::Vec<Isa>;
  simd::loop<Isa>(n, [&](std::int64_t i, auto lanes) {
    const V v = simd::load<V>(sums + i, lanes);
    simd::store(to + i, accumulate ? v + simd::load<V>(to + i, lanes) : v, lanes);
  });
}

template <class Isa, class T, class TW>
void forward(Pool& pool, const Conv2dShape& c, T* y, const T* x, const TW* w, View bias) {
  using V = simd::Vec<Isa>;
  for_rows(pool, c.n * c.oh, c.ow * c.o * c.k(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin * c.ow; at < end * c.ow; ++at) {
      const std::int64_t q = at % c.ow, p = at / c.ow % c.oh, n = at / c.ow / c.oh;
      for (std::int64_t o = 0; o < c.o; ++o) {
        float sum = 0;
        for (std::int64_t r = 0; r < c.kh; ++r)
          for (std::int64_t s = 0; s < c.kw; ++s) {
            const std::int64_t row = input_of(c, p, r), col = input_of(c, q, s);
            if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
            const T* pixel = x + ((n * c.h + row) * c.w + col) * c.i;
            const TW* tap = w + ((o * c.kh + r) * c.kw + s) * c.i;
            sum += simd::sum_over<Isa>(c.i, [&](V acc, std::int64_t i, auto lanes) {
              return fma(simd::load<V>(pixel + i, lanes), simd::load<V>(tap + i, lanes), acc);
            });
          }
        visit_dtype(bias.dtype(), [&]<class B>() {
          if (bias) sum += static_cast<float>(bias.ptr<B>()[o]);
        });
        y[at * c.o + o] = T(sum);
      }
    }
  });
}

template <class Isa, class T, class TW>
void backward_x(Pool& pool, const Conv2dShape& c, const Grad& dx, const TW* w, const T* dy) {
  for_rows(pool, c.n * c.h, c.w * c.o * c.k(), [&](std::int64_t begin, std::int64_t end) {
    float sums[kChannels];
    for (std::int64_t at = begin * c.w; at < end * c.w; ++at) {
      const std::int64_t col = at % c.w, row = at / c.w % c.h, n = at / c.w / c.h;
      for_pieces(c.i, [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) sums[i] = 0;
        for (std::int64_t r = 0; r < c.kh; ++r)
          for (std::int64_t s = 0; s < c.kw; ++s) {
            const std::int64_t p = row + c.pad - r * c.dilation, q = col + c.pad - s * c.dilation;
            if (p < 0 || q < 0 || p % c.stride || q % c.stride || p / c.stride >= c.oh || q / c.stride >= c.ow) continue;
            const T* pixel = dy + ((n * c.oh + p / c.stride) * c.ow + q / c.stride) * c.o;
            for (std::int64_t o = 0; o < c.o; ++o)
              add_scaled<Isa>(sums, w + ((o * c.kh + r) * c.kw + s) * c.i + first, static_cast<float>(pixel[o]), count);
          }
        put<Isa>(dx.ptr<T>() + at * c.i + first, sums, count, dx.accumulate());
      });
    }
  });
}

template <class Isa, class T, class TW>
void backward_w(Pool& pool, const Conv2dShape& c, const Grad& dw, const T* x, const T* dy) {
  for_rows(pool, c.o * c.taps(), c.pixels() * c.i, [&](std::int64_t begin, std::int64_t end) {
    float sums[kChannels];
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t s = at % c.kw, r = at / c.kw % c.kh, o = at / c.taps();
      for_pieces(c.i, [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) sums[i] = 0;
        for (std::int64_t pixel = 0; pixel < c.pixels(); ++pixel) {
          const std::int64_t row = input_of(c, pixel / c.ow % c.oh, r), col = input_of(c, pixel % c.ow, s), n = pixel / c.ow / c.oh;
          if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
          add_scaled<Isa>(sums, x + ((n * c.h + row) * c.w + col) * c.i + first, static_cast<float>(dy[pixel * c.o + o]), count);
        }
        put<Isa>(dw.ptr<TW>() + at * c.i + first, sums, count, dw.accumulate());
      });
    }
  });
}

template <class Isa, class T, class TB>
void backward_bias(Pool& pool, const Conv2dShape& c, const Grad& dbias, const T* dy) {
  for_rows(pool, (c.o + kChannels - 1) / kChannels, c.pixels() * kChannels, [&](std::int64_t begin, std::int64_t end) {
    float sums[kChannels];
    for (std::int64_t first = begin * kChannels; first < end * kChannels && first < c.o; first += kChannels) {
      const std::int64_t count = c.o - first < kChannels ? c.o - first : kChannels;
      for (std::int64_t i = 0; i < count; ++i) sums[i] = 0;
      for (std::int64_t pixel = 0; pixel < c.pixels(); ++pixel) add_scaled<Isa>(sums, dy + pixel * c.o + first, 1.0f, count);
      put<Isa>(dbias.ptr<TB>() + first, sums, count, dbias.accumulate());
    }
  });
}

}  // namespace

template <class Isa>
void conv2d(Isa, Pool& pool, Tensor y, View x, View w, View bias, const Conv2d::Args& a) {
  const Conv2dShape c = Conv2d::shape(x.spec(), w.spec(), a);
  visit_dtype(x.dtype(), [&]<class T>() {
    visit_dtype(w.dtype(), [&]<class TW>() { forward<Isa>(pool, c, y.ptr<T>(), x.ptr<T>(), w.ptr<TW>(), bias); });
  });
}

template <class Isa>
void conv2d_backward(Isa, Pool& pool, Grad dx, Grad dw, Grad dbias, View x, View w, View dy, const Conv2d::Args& a) {
  const Conv2dShape c = Conv2d::shape(x.spec(), w.spec(), a);
  visit_dtype(x.dtype(), [&]<class T>() {
    visit_dtype(w.dtype(), [&]<class TW>() {
      if (dx) backward_x<Isa>(pool, c, dx, w.ptr<TW>(), dy.ptr<T>());
      if (dw) backward_w<Isa, T, TW>(pool, c, dw, x.ptr<T>(), dy.ptr<T>());
    });
    visit_dtype(dbias.dtype(), [&]<class TB>() {
      if (dbias) backward_bias<Isa, T, TB>(pool, c, dbias, dy.ptr<T>());
    });
  });
}

template void conv2d(simd::Isa, Pool&, Tensor, View, View, View, const Conv2d::Args&);
template void conv2d_backward(simd::Isa, Pool&, Grad, Grad, Grad, View, View, View, const Conv2d::Args&);

}  // namespace hpcdl::cpu
