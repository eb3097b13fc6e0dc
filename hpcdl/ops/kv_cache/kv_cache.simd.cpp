#include "hpcdl/ops/kv_cache/kv_cache.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

template <class Isa> void append(Isa, Pool& pool, const Tensor& cache, const View& x, std::int64_t position) {
  using V = simd::Vec<Isa>;
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(cache.dtype(), [&]<class To>() {
      for_rows(pool, x.rows(), x.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) {
          const auto b = r / x[1], t = r % x[1];
          const From* from = x.ptr<From>() + b * x.strides()[0] + t * x.strides()[1];
          To* to = cache.ptr<To>() + b * cache.strides()[0] + (position + t) * cache.strides()[1];
          simd::loop<Isa>(x.cols(), [&](std::int64_t i, auto lanes) {
            simd::store(to + i, simd::load<V>(from + i, lanes), lanes);
          });
        }
      });
    });
  });
}

}  // namespace

template <class Isa>
void kv_cache(Isa isa, Pool& pool, Tensor k_cache, Tensor v_cache, View k, View v, std::int64_t position) {
  append(isa, pool, k_cache, k, position);
  append(isa, pool, v_cache, v, position);
}

template void kv_cache(simd::Isa, Pool&, Tensor, Tensor, View, View, std::int64_t);

}  // namespace hpcdl::cpu
