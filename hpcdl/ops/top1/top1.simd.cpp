#include <atomic>

#include "hpcdl/ops/rows.h"
#include "hpcdl/ops/top1/top1.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// Whether x[t] is the first largest of n values. NaN never is.
template <class Isa, class T> bool is_first_largest(const T* x, std::int64_t n, std::int64_t t) {
  if (t < 0 || t >= n) return false;
  const float largest = simd::max_over<Isa>(
      n, [&](std::int64_t i, auto lanes) { return simd::load<simd::Vec<Isa>>(x + i, lanes, -__builtin_inff()); });
  if (static_cast<float>(x[t]) != largest) return false;
  for (std::int64_t i = 0; i < t; ++i)
    if (static_cast<float>(x[i]) == largest) return false;
  return true;
}

}  // namespace

template <class Isa> void top1(Isa, Pool& pool, Tensor correct, View logits, View targets) {
  visit_dtype(logits.dtype(), [&]<class T>() {
    std::atomic<std::int64_t> right = 0;
    for_rows(pool, logits.rows(), logits.cols(), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t n = 0;
      for (auto r = begin; r < end; ++r)
        n += is_first_largest<Isa>(logits.ptr<T>() + r * logits.row_stride(), logits.cols(),
                                   targets.ptr<std::int32_t>()[r]);
      right += n;
    });
    *correct.ptr<float>() = static_cast<float>(right);
  });
}

template void top1(simd::Isa, Pool&, Tensor, View, View);

}  // namespace hpcdl::cpu
