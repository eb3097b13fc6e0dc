#include "hpcdl/ops/bias_gelu/bias_gelu.h"

#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/fuse.h"

namespace hpcdl::cpu {
namespace {

template <class F> void with_form(const Gelu::Args& a, F&& f) {
  if (a.form == Gelu::Form::tanh) f.template operator()<fuse::GeluTanh>();
  else f.template operator()<fuse::GeluErf>();
}

// For results that are rounded to bf16, with a relative error of 2^-9 at best: less exact functions than those for f32
// reduce the arithmetic in a pass over memory.

/// 1 / v with a relative error < 2^-14 where AVX-512 provides that.
template <class Isa> simd::Vec<Isa> coarse_reciprocal(simd::Vec<Isa> v) {
#if defined(HPCDL_SIMD_AVX512)
  return _mm512_rcp14_ps(v.v);
#else
  return reciprocal(v);
#endif
}

/// v with its magnitude limited to `most`.
template <class Isa> simd::Vec<Isa> limit(simd::Vec<Isa> v, simd::Vec<Isa> most) {
#if defined(HPCDL_SIMD_AVX512)
  return _mm512_range_ps(v.v, most.v, 0b0010);  // the smaller magnitude with the first operand's sign
#else
  return max(simd::Vec<Isa>(0.0f) - most, min(most, v));
#endif
}

/// 2^v with a relative error < 2^-13: a polynomial of degree 3, where simd::exp2 has 5.
template <class V> V coarse_exp2(V v) {
  const V r = fraction(v);
  V p = fma(V(7.8024522640e-2f), r, V(2.2606715543e-1f));
  p = fma(p, r, V(6.9583354049e-1f));
  p = fma(p, r, V(9.9992521856e-1f));
  return scale2(p, v);
}

/// GeluTanh. Powers are kept between 2^-125 and 2^125, away from subnormal numbers; the last product preserves NaN.
struct GeluTanhForBf16 {
  template <class V> static V value(V x) {
    constexpr float kScale = -fuse::GeluTanh::kTwoC * fuse::GeluTanh::kLog2e;
    const V t = x * fma(V(kScale * 0.044715f) * x, x, V(kScale));
    return fuse::gated(x, coarse_reciprocal(V(1.0f) + coarse_exp2(limit(t, V(125.0f)))));
  }
};

/// The gradient of one row; adds it to `sum`.
template <class F, class T, class Isa>
[[gnu::flatten]] void backward_row(Isa, T* to, bool accumulate, float* sum, const T* x, const T* b, const T* dy,
                                   std::int64_t cols) {
  using V = simd::Vec<Isa>;
  simd::loop<Isa>(cols, [&](std::int64_t i, auto lanes) {
    const V g = simd::load<V>(dy + i, lanes) * F::slope(simd::load<V>(x + i, lanes) + simd::load<V>(b + i, lanes));
    simd::store(sum + i, simd::load<V>(sum + i, lanes) + g, lanes);
    if (to) simd::store(to + i, accumulate ? g + simd::load<V>(to + i, lanes) : g, lanes);
  });
}

template <class T, class Isa>
void add_parts(Isa, const Grad& db, const float* parts, std::int64_t n, std::int64_t cols) {
  using V = simd::Vec<Isa>;
  T* to = db.ptr<T>();
  simd::loop<Isa>(cols, [&](std::int64_t i, auto lanes) {
    V g = db.accumulate() ? simd::load<V>(to + i, lanes) : V(0.0f);
    for (std::int64_t p = 0; p < n; ++p) g = g + simd::load<V>(parts + p * cols + i, lanes);
    simd::store(to + i, g, lanes);
  });
}

}  // namespace

template <class Isa> void bias_gelu(Isa isa, Pool& pool, Tensor y, View x, View b, const Gelu::Args& a) {
  const auto run = [&]<class F>() {
    fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::add_columns(b), fuse::Apply<F>{}));
  };
  if (y.dtype() == DType::bf16 && a.form == Gelu::Form::tanh) run.template operator()<GeluTanhForBf16>();
  else with_form(a, run);
}

template <class Isa>
void bias_gelu_backward(Isa isa, Pool& pool, Grad dx, Grad db, View x, View b, View dy, Tensor scratch,
                        const Gelu::Args& a) {
  const std::int64_t rows = x.rows(), cols = x.cols(), parts = BiasGelu::kParts;
  visit_dtype(x.dtype(), [&]<class T>() {
    with_form(a, [&]<class F>() {
      parallel_for(
          pool, parts, rows * cols < 2 * kGrainElements ? parts : 1, [&](std::int64_t begin, std::int64_t end) {
            for (auto p = begin; p < end; ++p) {
              float* sum = scratch.ptr<float>() + p * cols;
              for (std::int64_t i = 0; i < cols; ++i) sum[i] = 0;
              for (auto r = rows * p / parts; r < rows * (p + 1) / parts; ++r)
                backward_row<F>(isa, dx ? dx.ptr<T>() + r * dx.row_stride() : nullptr, dx.accumulate(), sum,
                                x.ptr<T>() + r * x.row_stride(), b.ptr<T>(), dy.ptr<T>() + r * dy.row_stride(), cols);
            }
          });
    });
    if (db) add_parts<T>(isa, db, scratch.ptr<float>(), parts, cols);
  });
}

template void bias_gelu(simd::Isa, Pool&, Tensor, View, View, const Gelu::Args&);
template void bias_gelu_backward(simd::Isa, Pool&, Grad, Grad, View, View, View, Tensor, const Gelu::Args&);

}  // namespace hpcdl::cpu
