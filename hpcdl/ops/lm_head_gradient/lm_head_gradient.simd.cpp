#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {

template <class Isa> void scale_gradient(Isa, Pool& pool, Grad to, View from, float factor) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  visit_dtype(to.dtype(), [&]<class T>() {
    visit_dtype(from.dtype(), [&]<class From>() {
      for_rows(pool, to.rows(), to.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) {
          T* out = to.ptr<T>() + r * to.row_stride();
          const From* in = from.ptr<From>() + r * from.row_stride();
          loop<Isa>(to.cols(), [&](std::int64_t i, auto k) {
            const V v = load<V>(in + i, k) * V(factor);
            store(out + i, to.accumulate() ? v + load<V>(out + i, k) : v, k);
          });
        }
      });
    });
  });
}

template void scale_gradient(simd::Isa, Pool&, Grad, View, float);

}  // namespace hpcdl::cpu
