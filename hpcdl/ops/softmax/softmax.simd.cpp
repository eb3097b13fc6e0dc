#include "hpcdl/ops/softmax/softmax.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

/// Columns that row `r` sees.
std::int64_t visible(const View& x, std::int64_t r, bool causal) {
  if (!causal) return x.cols();
  const std::int64_t rows = x[-2];
  return r % rows + x.cols() - rows + 1;
}

template <class Isa, class T> void softmax_row(T* y, const T* x, std::int64_t n, std::int64_t cols, float scale) {
  using V = simd::Vec<Isa>;
  const V s(scale);
  V top(-__builtin_inff());
  const auto lanes = [&](std::int64_t i, std::int64_t end) { return static_cast<int>(end - i < V::N ? end - i : V::N); };
  for (std::int64_t i = 0; i < n; i += V::N) top = max(V::load(x + i, lanes(i, n), -__builtin_inff()) * s, top);
  const V m(reduce_max(top));
  V sum(0.0f);
  for (std::int64_t i = 0; i < n; i += V::N) {
    const int k = lanes(i, n);
    const V e = exp(V::load(x + i, k) * s - m);
    float t[V::N];
    e.store(t);
    sum = sum + V::load(t, k);
  }
  const V inv(1.0f / reduce_add(sum));
  for (std::int64_t i = 0; i < n; i += V::N) {
    const int k = lanes(i, n);
    (exp(V::load(x + i, k) * s - m) * inv).store(y + i, k);
  }
  for (std::int64_t i = n; i < cols; i += V::N) V(0.0f).store(y + i, lanes(i, cols));
}

}  // namespace

template <class Isa> void softmax(Isa, Pool& pool, Tensor y, View x, const Softmax::Args& a) {
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, x.rows(), x.cols(), [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r)
        softmax_row<Isa>(y.ptr<T>() + r * y.row_stride(), x.ptr<T>() + r * x.row_stride(), visible(x, r, a.causal), x.cols(), a.scale);
    });
  });
}

template <class Isa> void softmax_backward(Isa, Pool& pool, Grad dx, View y, View dy, const Softmax::Args& a) {
  using V = simd::Vec<Isa>;
  visit_dtype(y.dtype(), [&]<class T>() {
    for_rows(pool, y.rows(), y.cols(), [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* yr = y.ptr<T>() + r * y.row_stride();
        const T* gr = dy.ptr<T>() + r * dy.row_stride();
        T* out = dx.ptr<T>() + r * dx.row_stride();
        const auto n = y.cols();
        V dot(0.0f);
        for (std::int64_t i = 0; i < n; i += V::N) {
          const int k = static_cast<int>(n - i < V::N ? n - i : V::N);
          dot = fma(V::load(yr + i, k), V::load(gr + i, k), dot);
        }
        const V d(reduce_add(dot)), s(a.scale);
        for (std::int64_t i = 0; i < n; i += V::N) {
          const int k = static_cast<int>(n - i < V::N ? n - i : V::N);
          V g = s * V::load(yr + i, k) * (V::load(gr + i, k) - d);
          if (dx.accumulate()) g = g + V::load(out + i, k);
          g.store(out + i, k);
        }
      }
    });
  });
}

template void softmax(simd::Isa, Pool&, Tensor, View, const Softmax::Args&);
template void softmax_backward(simd::Isa, Pool&, Grad, View, View, const Softmax::Args&);

}  // namespace hpcdl::cpu
