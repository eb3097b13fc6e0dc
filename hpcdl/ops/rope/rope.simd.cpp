#include "hpcdl/ops/rope/rope.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// One head: (y1, y2) = (x1 c - x2 s, x2 c + x1 s), halves of R/2 elements.
template <class Isa, class T>
void rotate(T* y, const T* x, const float* table, std::int64_t half, float sign, bool accumulate) {
  using V = simd::Vec<Isa>;
  simd::loop<Isa>(half, [&](std::int64_t i, auto n) {
    const V c = simd::load<V>(table + i, n), s = simd::load<V>(table + half + i, n) * V(sign);
    const V x1 = simd::load<V>(x + i, n), x2 = simd::load<V>(x + half + i, n);
    V y1 = fma(x1, c, V(0.0f) - x2 * s), y2 = fma(x2, c, x1 * s);
    if (accumulate) y1 = y1 + simd::load<V>(y + i, n), y2 = y2 + simd::load<V>(y + half + i, n);
    simd::store(y + i, y1, n);
    simd::store(y + half + i, y2, n);
  });
}

/// The elements of a head after those that are rotated.
template <class Isa, class T> void copy_rest(T* y, const T* x, std::int64_t count, bool accumulate) {
  using V = simd::Vec<Isa>;
  if (y == x && !accumulate) return;
  simd::loop<Isa>(count, [&](std::int64_t i, auto n) {
    const V v = simd::load<V>(x + i, n);
    simd::store(y + i, accumulate ? v + simd::load<V>(y + i, n) : v, n);
  });
}

}  // namespace

template <class Isa>
void rope(Isa, Pool& pool, Grad y, View x, View table, View positions, float sign, const Rope::Args& a) {
  const std::int64_t d = a.head_dim > 0 ? a.head_dim : x.cols(), rotated = table[1], tokens = x[1];
  const bool split = x.rank() == 4;
  const std::int64_t heads = split ? x[2] : x.cols() / d;
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, x[0] * tokens, heads * d, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const auto b = r / tokens, t = r % tokens;
        const float* angles = table.ptr<float>() + (positions ? positions.ptr<std::int32_t>()[r] : t) * rotated;
        T* to = y.ptr<T>() + b * y.strides()[0] + t * y.strides()[1];
        const T* from = x.ptr<T>() + b * x.strides()[0] + t * x.strides()[1];
        for (std::int64_t h = 0; h < heads; ++h) {
          T* const head = to + h * (split ? y.strides()[2] : d);
          const T* const source = from + h * (split ? x.strides()[2] : d);
          rotate<Isa>(head, source, angles, rotated / 2, sign, y.accumulate());
          if (rotated < d) copy_rest<Isa>(head + rotated, source + rotated, d - rotated, y.accumulate());
        }
      }
    });
  });
}

template void rope(simd::Isa, Pool&, Grad, View, View, View, float, const Rope::Args&);

}  // namespace hpcdl::cpu
