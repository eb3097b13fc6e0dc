#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

/// y = f(x), element by element.
template <class To, class From, class F> void each(Pool& pool, const Tensor& y, View x, const F& f) {
  for_row_chunks(pool, y.rows(), y.cols(), [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    To* to = y.ptr<To>() + row * y.row_stride();
    const From* from = x.ptr<From>() + row * x.row_stride();
    for (std::int64_t i = begin; i < end; ++i) to[i] = f(from[i]);
  });
}

}  // namespace

template <class Isa> void cast_f8(Isa, Pool& pool, Grad y, View x) {
  if (is_f8_dtype(y.dtype()))
    return visit_f8(y.dtype(), [&]<class To>() {
      visit_dtype(x.dtype(), [&]<class From>() {
        each<To, From>(pool, y, x, [](From v) { return to_f8<To>(static_cast<float>(v)); });
      });
    });
  visit_f8(x.dtype(), [&]<class From>() {
    visit_dtype(y.dtype(), [&]<class To>() { each<To, From>(pool, y, x, [](From v) { return To(from_f8(v)); }); });
  });
}

template void cast_f8(simd::Isa, Pool&, Grad, View);

}  // namespace hpcdl::cpu
