#include "hpcdl/ops/bias_gelu/bias_gelu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {
namespace {

template <class F> void with_form(const Gelu::Args& a, F&& f) {
  if (a.form == Gelu::Form::tanh) f.template operator()<fuse::GeluTanh>();
  else f.template operator()<fuse::GeluErf>();
}

/// Columns [begin, end) of all rows: each thread owns columns, so sums over rows need no second step and no order but the
/// rows' own. A block of columns is held in `sum` (its lines stay in L1).
template <class F, class T, class Isa>
void columns(Isa, const Grad& dx, const Grad& db, const View& x, const View& b, const View& dy, std::int64_t begin, std::int64_t end) {
  using V = simd::Vec<Isa>;
  constexpr std::int64_t kBlock = 512;
  alignas(64) float sum[kBlock];
  for (std::int64_t c0 = begin; c0 < end; c0 += kBlock) {
    const std::int64_t n = end - c0 < kBlock ? end - c0 : kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) sum[i] = 0;
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      const T* px = x.ptr<T>() + r * x.row_stride() + c0;
      const T* pg = dy.ptr<T>() + r * dy.row_stride() + c0;
      T* to = dx ? dx.ptr<T>() + r * dx.row_stride() + c0 : nullptr;
      simd::loop<Isa>(n, [&](std::int64_t i, auto lanes) {
        const V z = simd::load<V>(px + i, lanes) + simd::load<V>(b.ptr<T>() + c0 + i, lanes);
        const V g = simd::load<V>(pg + i, lanes) * F::slope(z);
        simd::store(sum + i, simd::load<V>(sum + i, lanes) + g, lanes);
        if (to) simd::store(to + i, dx.accumulate() ? g + simd::load<V>(to + i, lanes) : g, lanes);
      });
    }
    if (!db) continue;
    T* to = db.ptr<T>() + c0;
    simd::loop<Isa>(n, [&](std::int64_t i, auto lanes) {
      const V g = simd::load<V>(sum + i, lanes);
      simd::store(to + i, db.accumulate() ? g + simd::load<V>(to + i, lanes) : g, lanes);
    });
  }
}

}  // namespace

template <class Isa> void bias_gelu(Isa isa, Pool& pool, Tensor y, View x, View b, const Gelu::Args& a) {
  with_form(a, [&]<class F>() {
    fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::add_columns(b), fuse::Apply<F>{}));
  });
}

template <class Isa> void bias_gelu_backward(Isa isa, Pool& pool, Grad dx, Grad db, View x, View b, View dy, const Gelu::Args& a) {
  visit_dtype(x.dtype(), [&]<class T>() {
    with_form(a, [&]<class F>() {
      const std::int64_t blocks = (x.cols() + 63) / 64;
      parallel_for(pool, blocks, 1 + kGrainElements / (64 * x.rows() + 1), [&](std::int64_t begin, std::int64_t end) {
        columns<F, T>(isa, dx, db, x, b, dy, begin * 64, end * 64 < x.cols() ? end * 64 : x.cols());
      });
    });
  });
}

template void bias_gelu(simd::Isa, Pool&, Tensor, View, View, const Gelu::Args&);
template void bias_gelu_backward(simd::Isa, Pool&, Grad, Grad, View, View, View, const Gelu::Args&);

}  // namespace hpcdl::cpu
