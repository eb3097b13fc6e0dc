#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/cross_entropy/log_sum_exp.h"
#include "hpcdl/ops/rows.h"

namespace hpcdl::cpu {
namespace {

/// sum of (top - x): small where logits are large.
template <class Isa, class T> float sum_below(const T* x, std::int64_t n, float top) {
  using V = simd::Vec<Isa>;
  const V t(top);
  return simd::sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) { return a + (t - simd::load<V>(x + i, k, top)); });
}

float weight(const View& weights, std::int64_t row) { return weights ? weights.ptr<float>()[row] : 1.0f; }

}  // namespace

template <class Isa>
void cross_entropy_rows(Isa, Pool& pool, Tensor row_loss, Tensor lse, View logits, View targets, View weights,
                        float smoothing) {
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
        const float far =
            smoothing > 0 && t >= 0 ? smoothing / static_cast<float>(n) * sum_below<Isa>(x, n, top) : 0.0f;
        row_loss.ptr<float>()[r] = weight(weights, r) * ((1.0f - smoothing) * (top - at_target) + far +
                                                         log_sum);  // adding top + log_sum first would cancel
      }
    });
  });
}

template <class Isa> void cross_entropy_sum(Isa, Tensor loss, Tensor count, View row_loss, View targets, View weights) {
  double sum = 0, valid = 0;
  for (std::int64_t r = 0; r < row_loss.size(); ++r) {
    if (targets.ptr<std::int32_t>()[r] < 0) continue;
    sum += static_cast<double>(row_loss.ptr<float>()[r]);
    valid += static_cast<double>(weight(weights, r));
  }
  *loss.ptr<float>() = static_cast<float>(sum);
  *count.ptr<float>() = static_cast<float>(valid);
}

template <class Isa>
void cross_entropy_backward(Isa, Pool& pool, Grad dlogits, View logits, View targets, View lse, float dloss,
                            View weights, float smoothing) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  const bool add = dlogits.accumulate(), past_cache = goes_past_cache(dlogits);
  const V even(smoothing / static_cast<float>(n));
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
        const float scale = weight(weights, r) * dloss;
        const bool far = is_far_lse(lse.ptr<float>()[r]);
        LogSumExp<Isa> l;
        if (far) l.add(x, n);
        const V shift(far ? l.top : lse.ptr<float>()[r]), rest(far ? l.log_sum() : 0.0f), g(scale);
        const auto write = [&](auto term) {
          const auto d = [&](std::int64_t i, auto k) {
            prefetch_pages_in_turn(reinterpret_cast<const char*>(x + i) + LogSumExp<Isa>::kAhead);
            return term(load<V>(x + i, k)) * g;
          };
          const bool known = t < n;
          // The target's element is computed separately, because the loop may overwrite its input.
          const float p = known ? reduce_max(term(V(static_cast<float>(x[t])))) : 0;
          const float before = known && add ? static_cast<float>(dx[t]) : 0;
          if (add) loop<Isa>(n, [&](std::int64_t i, auto k) { store(dx + i, load<V>(dx + i, k) + d(i, k), k); });
          else if (past_cache) loop_aligned<Isa>(dx, n, [&](std::int64_t i, auto k) { stream(dx + i, d(i, k), k); });
          else loop<Isa>(n, [&](std::int64_t i, auto k) { store(dx + i, d(i, k), k); });
          if (known) dx[t] = T(before + (p - (1.0f - smoothing)) * scale);
        };
        if (far) write([&](V v) { return LogSumExp<Isa>::power((v - shift) - rest) - even; });
        else if (smoothing > 0) write([&](V v) { return LogSumExp<Isa>::power(v - shift) - even; });
        else write([&](V v) { return LogSumExp<Isa>::power(v - shift); });
      }
      if (past_cache) stream_fence<Isa>();
    });
  });
}

template void cross_entropy_rows(simd::Isa, Pool&, Tensor, Tensor, View, View, View, float);
template void cross_entropy_sum(simd::Isa, Tensor, Tensor, View, View, View);
template void cross_entropy_backward(simd::Isa, Pool&, Grad, View, View, View, float, View, float);

}  // namespace hpcdl::cpu
