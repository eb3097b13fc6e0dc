#include "hpcdl/ops/attention_merge/attention_merge.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr float kInf = __builtin_inff();

template <class Isa> float exponential(float x) { return reduce_max(exp(simd::Vec<Isa>(x))); }
template <class Isa> float logarithm(float x) { return reduce_max(log(simd::Vec<Isa>(x))); }

struct Weights {
  float out, part, lse;
};

template <class Isa> Weights weights(float a, float b) {
  if (b == -kInf) return {1, 0, a};
  const float top = a > b ? a : b, x = exponential<Isa>(a - top), y = exponential<Isa>(b - top), sum = x + y;
  return {x / sum, y / sum, top + logarithm<Isa>(sum)};
}

/// to = w.out out + w.part part
template <class Isa, class T>
void merge_row(float* to, const float* out, const T* part, std::int64_t d, const Weights& w) {
  using V = simd::Vec<Isa>;
  for (std::int64_t i = 0; i < d; i += V::N) {
    const int n = static_cast<int>(d - i < V::N ? d - i : V::N);
    fma(V::load(out + i, n), V(w.out), V::load(part + i, n) * V(w.part)).store(to + i, n);
  }
}

}  // namespace

template <class Isa>
void attention_merge(Isa, Pool& pool, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse) {
  const std::int64_t heads = lse[1], queries = out[1], merged = part[1], d = out[2] / heads;
  const auto *a = lse.ptr<float>(), *b = part_lse.ptr<float>(), *from = out.ptr<float>();
  visit_dtype(part.dtype(), [&]<class T>() {
    for_rows(pool, out[0] * queries * heads, d, [&](std::int64_t begin, std::int64_t end) {
      for (auto row = begin; row < end; ++row) {
        const auto h = row % heads, t = row / heads % queries, sequence = row / heads / queries;
        const auto at = (sequence * heads + h) * queries + t;
        auto* const y = to.ptr<float>() + row * d;
        const auto* const x = from + row * d;
        if (t >= merged) {
          to_lse.ptr<float>()[at] = a[at];
          for (std::int64_t i = 0; i < d && y != x; ++i) y[i] = x[i];
          continue;
        }
        const auto w = weights<Isa>(a[at], b[(sequence * heads + h) * merged + t]);
        merge_row<Isa>(y, x, part.ptr<T>() + ((sequence * merged + t) * heads + h) * d, d, w);
        to_lse.ptr<float>()[at] = w.lse;
      }
    });
  });
}

template void attention_merge(simd::Isa, Pool&, Tensor, Tensor, View, View, View, View);

}  // namespace hpcdl::cpu
