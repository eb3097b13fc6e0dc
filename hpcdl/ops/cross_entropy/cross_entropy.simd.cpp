#include "hpcdl/ops/cross_entropy/cross_entropy.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr float kInf = __builtin_inff();

/// log(sum(exp(x))) = top + log_sum; kept apart, because top + log_sum - x[target] would cancel.
struct LogSumExp {
  float top, log_sum;
};

/// Maximum and sum of one block at a time, so that the row is read from memory once. All-NaN and +inf
/// rows give NaN, as the two-pass form does.
template <class Isa, class T> LogSumExp log_sum_exp(const T* x, std::int64_t n) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  constexpr std::int64_t kBlock = 4096;  // stays in L1
  float top = -kInf, sum = 0;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const auto len = n - at < kBlock ? n - at : kBlock;
    const T* p = x + at;
    const float here = max_over<Isa>(len, [&](std::int64_t i, auto k) { return load<V>(p + i, k, -kInf); });
    if (here > top) {
      sum = sum == 0 ? 0 : sum * reduce_max(exp(V(top - here)));
      top = here;
    }
    if (top == -kInf) {  // nothing but -inf or NaN so far: only NaN matters
      sum += sum_over<Isa>(len, [&](V a, std::int64_t i, auto k) {
        const V v = load<V>(p + i, k);
        return a + select(v == V(-kInf), V(0.0f), v);
      });
      continue;
    }
    const V m(top);
    sum += sum_over<Isa>(len, [&](V a, std::int64_t i, auto k) { return a + exp(load<V>(p + i, k, -kInf) - m); });
  }
  return {top, reduce_max(log(V(sum)))};
}

}  // namespace

template <class Isa> void cross_entropy_rows(Isa, Pool& pool, Tensor row_loss, Tensor lse, View logits, View targets) {
  const auto n = logits.cols();
  const auto* target = targets.ptr<std::int32_t>();
  visit_dtype(logits.dtype(), [&]<class T>() {
    for_rows(pool, logits.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* x = logits.ptr<T>() + r * logits.row_stride();
        const auto t = target[r];
        const auto l = t < 0 ? LogSumExp{0, 0} : log_sum_exp<Isa>(x, n);
        if (lse) lse.ptr<float>()[r] = l.top + l.log_sum;
        const float at_target = t < 0 ? 0.0f : t < n ? static_cast<float>(x[t]) : __builtin_nanf("");
        row_loss.ptr<float>()[r] = (l.top - at_target) + l.log_sum;
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
  const bool add = dlogits.accumulate(), past_cache = dlogits.bytes() > kCacheBytes;
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
        const auto softmax = [&](std::int64_t i, auto k) { return exp(load<V>(x + i, k) - shift) * g; };
        const bool known = t < n;
        // The target's element is computed apart, from values that the loop may overwrite.
        const float p = known ? reduce_max(exp(V(static_cast<float>(x[t])) - shift)) : 0;
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
