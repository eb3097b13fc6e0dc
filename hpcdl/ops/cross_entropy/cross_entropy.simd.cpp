#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/ops/cross_entropy/log_sum_exp.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
template <class Isa> void cross_entropy_rows(Isa, Pool& pool, Tensor row_loss, Tensor lse, View logits, View targets) {
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  visit_dtype(logits.dtype(), [&]<class T>() {
    for_rows(pool, logits.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* x = logits.ptr<T>() + r * logits.row_stride();
        const auto t = target[r];
        LogSumExp<Isa> l;
        if (t >= 0) l.add(x, n);
        const float log_sum = t >= 0 ? l.log_sum() : 0, top = t >= 0 ? l.top : 0;
        if (lse) lse.ptr<float>()[r] = top + log_sum;
        const float at_target = t < 0 ? 0.0f : t < n ? static_cast<float>(x[t]) : __builtin_nanf("");
        row_loss.ptr<float>()[r] = (top - at_target) + log_sum;  // top + log_sum first would cancel
      }
    });
  });
}

template <class Isa> void cross_entropy_sum(Isa, Tensor loss, Tensor count, View row_loss, View targets) {
  double sum = 0;
  std::int64_t valid = 0;
  for (std::int64_t r = 0; r < row_loss.size(); ++r) {
    sum += static_cast<double>(row_loss.ptr<float>()[r]);
    valid += targets.ptr<std::int32_t>()[r] >= 0 ? 1 : 0;
  }
  *loss.ptr<float>() = static_cast<float>(sum);
  *count.ptr<float>() = static_cast<float>(valid);
}

template <class Isa>
void cross_entropy_backward(Isa, Pool& pool, Grad dlogits, View logits, View targets, View lse, float dloss) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  const bool add = dlogits.accumulate(), past_cache = goes_past_cache(dlogits);
  visit_dtype(logits.dtype(), [&]<class T>() {
    for_rows(pool, logits.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* x = logits.ptr<T>() + r * logits.row_stride();
        T* dx = dlogits.ptr<T>() + r * dlogits.row_stride();
        const auto t = target[r];
        if (t < 0) {
          if (!add) loop<Isa>(n, [&](std::int64_t i, auto k) { store(dx + i, V(0.0f), k); });
          continue;
        }
        const V shift(lse.ptr<float>()[r]), g(dloss);
        const auto softmax = [&](std::int64_t i, auto k) { return LogSumExp<Isa>::power(load<V>(x + i, k) - shift) * g; };
        const bool known = t < n;
        // The target's element is computed apart, from values that the loop may overwrite.
        const float p = known ? reduce_max(LogSumExp<Isa>::power(V(static_cast<float>(x[t])) - shift)) : 0;
        const float before = known && add ? static_cast<float>(dx[t]) : 0;
        if (add) loop<Isa>(n, [&](std::int64_t i, auto k) { store(dx + i, load<V>(dx + i, k) + softmax(i, k), k); });
        else if (past_cache) loop_aligned<Isa>(dx, n, [&](std::int64_t i, auto k) { stream(dx + i, softmax(i, k), k); });
        else loop<Isa>(n, [&](std::int64_t i, auto k) { store(dx + i, softmax(i, k), k); });
        if (known) dx[t] = T(before + (p - 1.0f) * dloss);
      }
      if (past_cache) stream_fence<Isa>();
    });
  });
}

template void cross_entropy_rows(simd::Isa, Pool&, Tensor, Tensor, View, View);
template void cross_entropy_sum(simd::Isa, Tensor, Tensor, View, View);
template void cross_entropy_backward(simd::Isa, Pool&, Grad, View, View, View, float);

}  // namespace hpcdl::cpu
