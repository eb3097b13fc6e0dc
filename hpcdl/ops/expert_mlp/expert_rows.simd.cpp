#include "hpcdl/ops/expert_mlp/expert_rows.h"

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

template <class Isa, class T, class Act> void slopes(Pool& pool, const ExpertSlopes& p) {
  using V = simd::Vec<Isa>;
  const auto cols = p.hidden.cols();
  for_rows(pool, p.hidden.rows(), cols, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const std::int64_t choice = p.choices[r];
      const V weight(p.weights[choice]);
      const T *gate = p.gate.ptr<T>() + choice * cols, *up = p.up.ptr<T>() + choice * cols;
      const T* dz = p.dz.ptr<T>() + r * cols;
      T *hidden = p.hidden.ptr<T>() + r * cols, *dgate = p.dgate.ptr<T>() + r * cols, *dup = p.dup.ptr<T>() + r * cols;
      const float dweight = simd::sum_over<Isa>(cols, [&](V sum, std::int64_t i, auto lanes) {
        const V g = simd::load<V>(gate + i, lanes), u = simd::load<V>(up + i, lanes), d = simd::load<V>(dz + i, lanes),
                act = Act::value(g), h = act * u, dh = weight * d;
        simd::store(hidden + i, weight * h, lanes);
        simd::store(dgate + i, dh * u * Act::slope(g), lanes);
        simd::store(dup + i, dh * act, lanes);
        return fma(h, d, sum);
      });
      if (p.dweights) p.dweights[choice] = p.accumulate ? p.dweights[choice] + dweight : dweight;
    }
  });
}

}  // namespace

template <class Isa> void expert_slopes(Isa, Pool& pool, const ExpertSlopes& p, Swiglu::Gate by) {
  visit_dtype(p.hidden.dtype(), [&]<class T>() {
    if (by == Swiglu::Gate::silu) slopes<Isa, T, fuse::Silu>(pool, p);
    else slopes<Isa, T, fuse::GeluTanh>(pool, p);
  });
}

template <class Isa>
void sum_of_choices(Isa, Pool& pool, const Grad& dx, View rows, const std::int32_t* row_of, int count) {
  using V = simd::Vec<Isa>;
  const auto cols = dx.cols();
  visit_dtype(dx.dtype(), [&]<class T>() {
    for_rows(pool, dx.rows(), cols, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        T* to = dx.ptr<T>() + r * dx.row_stride();
        simd::loop<Isa>(cols, [&](std::int64_t i, auto lanes) {
          V sum = dx.accumulate() ? simd::load<V>(to + i, lanes) : V(0.0f);
          for (int c = 0; c < count; ++c)
            if (row_of[r * count + c] >= 0)
              sum = sum + simd::load<V>(rows.ptr<T>() + row_of[r * count + c] * cols + i, lanes);
          simd::store(to + i, sum, lanes);
        });
      }
    });
  });
}

template void expert_slopes(simd::Isa, Pool&, const ExpertSlopes&, Swiglu::Gate);
template void sum_of_choices(simd::Isa, Pool&, const Grad&, View, const std::int32_t*, int);

}  // namespace hpcdl::cpu
