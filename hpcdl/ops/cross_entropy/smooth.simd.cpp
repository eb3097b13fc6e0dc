#include "hpcdl/ops/cross_entropy/smooth.h"

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

}  // namespace

template <class Isa>
void smooth_cross_entropy(Isa, Pool& pool, Tensor loss, Tensor count, Tensor lse, View logits, View targets, View weights, Tensor row_loss, float smoothing) {
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  const auto weight = [&](std::int64_t r) { return weights ? weights.ptr<float>()[r] : 1.0f; };
  visit_dtype(logits.dtype(), [&]<class T>() {
    for_rows(pool, logits.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* x = logits.ptr<T>() + r * logits.row_stride();
        const auto t = target[r];
        float *to = row_loss.ptr<float>() + r, *stat = lse ? lse.ptr<float>() + r : nullptr;
        if (t < 0) {
          *to = 0;
          if (stat) *stat = 0;
          continue;
        }
        LogSumExp<Isa> l;
        l.add(x, n);
        const float log_sum = l.log_sum(), at_target = t < n ? static_cast<float>(x[t]) : __builtin_nanf("");
        const float far = smoothing > 0 ? smoothing / static_cast<float>(n) * sum_below<Isa>(x, n, l.top) : 0.0f;
        *to = weight(r) * ((1.0f - smoothing) * (l.top - at_target) + far + log_sum);
        if (stat) *stat = l.top + log_sum;
      }
    });
  });
  double sum = 0, all = 0;
  for (std::int64_t r = 0; r < row_loss.size(); ++r) {
    if (target[r] < 0) continue;
    sum += static_cast<double>(row_loss.ptr<float>()[r]);
    all += static_cast<double>(weight(r));
  }
  *loss.ptr<float>() = static_cast<float>(sum);
  *count.ptr<float>() = static_cast<float>(all);
}

template <class Isa>
void smooth_cross_entropy_backward(Isa, Pool& pool, Grad dlogits, View logits, View targets, View weights, View lse, float dloss, float smoothing) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  const bool add = dlogits.accumulate();
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
        const float scale = weights ? weights.ptr<float>()[r] * dloss : dloss;
        const V shift(lse.ptr<float>()[r]), g(scale);
        const auto softmax = [&](V v) { return LogSumExp<Isa>::power(v - shift) - even; };
        // The target's element is computed apart, from values that the loop may overwrite.
        const float p = t < n ? reduce_max(softmax(V(static_cast<float>(x[t])))) - (1.0f - smoothing) : 0;
        const float before = t < n && add ? static_cast<float>(dx[t]) : 0;
        loop<Isa>(n, [&](std::int64_t i, auto k) {
          const V d = softmax(load<V>(x + i, k)) * g;
          store(dx + i, add ? load<V>(dx + i, k) + d : d, k);
        });
        if (t < n) dx[t] = T(before + p * scale);
      }
    });
  });
}

template void smooth_cross_entropy(simd::Isa, Pool&, Tensor, Tensor, Tensor, View, View, View, Tensor, float);
template void smooth_cross_entropy_backward(simd::Isa, Pool&, Grad, View, View, View, View, float, float);

}  // namespace hpcdl::cpu
