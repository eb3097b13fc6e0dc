#include "hpcdl/ops/kv_write/kv_write.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

template <class Isa> void write(Isa, Pool& pool, const Tensor& pages, const View& x, const View& slots) {
  using V = simd::Vec<Isa>;
  const std::int64_t heads = pages[1], d = pages[3], page = pages.strides()[0];
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(pages.dtype(), [&]<class To>() {
      for_rows(pool, x.rows(), x.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) {
          const auto slot = slots.ptr<std::int64_t>()[r];
          if (slot < 0) continue;
          const From* from = x.ptr<From>() + r / x[1] * x.strides()[0] + r % x[1] * x.strides()[1];
          To* to = pages.ptr<To>() + slot / kPageTokens * page + slot % kPageTokens * d;
          for (std::int64_t h = 0; h < heads; ++h)
            simd::loop<Isa>(d, [&](std::int64_t i, auto lanes) {
              simd::store(to + h * kPageTokens * d + i, simd::load<V>(from + h * d + i, lanes), lanes);
            });
        }
      });
    });
  });
}

}  // namespace

template <class Isa> void kv_write(Isa isa, Pool& pool, Tensor k_pool, Tensor v_pool, View k, View v, View slots) {
  write(isa, pool, k_pool, k, slots);
  write(isa, pool, v_pool, v, slots);
}

template void kv_write(simd::Isa, Pool&, Tensor, Tensor, View, View, View);

}  // namespace hpcdl::cpu
