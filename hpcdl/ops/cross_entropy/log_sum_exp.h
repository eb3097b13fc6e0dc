#pragma once
// log(sum(exp(x))) computed block by block, so that a row is read from memory once (included only by .simd.cpp).

#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"
#include "hpcdl/simd/prefetch.h"

namespace hpcdl::cpu {

/// The sum is kept relative to the largest value so far: sum(exp(x)) = sum * exp(top). Any NaN gives a NaN sum.
template <class Isa> struct LogSumExp {
  using V = simd::Vec<Isa>;
  static constexpr float kInf = __builtin_inff();
  static constexpr std::int64_t kAhead = 16384;  // bytes; memory does not wait for arithmetic

  float top = -kInf, sum = 0;

  /// e^v for v <= 0.
  static V power(V v) { return exp2(v * V(1.44269504f)); }
  float log_sum() const { return reduce_max(log(V(sum))); }

  template <class T> void add(const T* x, std::int64_t n) {
    constexpr std::int64_t kBlock = 2048;  // stays in L1 between the passes for its maximum and its sum
    for (std::int64_t at = 0; at < n; at += kBlock) add_block(x + at, n - at < kBlock ? n - at : kBlock);
  }

 private:
  template <class T> void add_block(const T* x, std::int64_t n) {
    using namespace simd;
    const float here = max_over<Isa>(n, [&](std::int64_t i, auto k) {
      prefetch_pages_in_turn(reinterpret_cast<const char*>(x + i) + kAhead);
      return load<V>(x + i, k, -kInf);
    });
    if (here > top) {
      sum = sum == 0 ? 0 : sum * reduce_max(power(V(top - here)));
      top = here;
    }
    const V m(top);
    if (top == -kInf) {  // only -inf or NaN so far, and exp(-inf - -inf) is NaN
      sum += sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) {
        const V v = load<V>(x + i, k);
        return a + select(v == m, V(0.0f), v);
      });
      return;
    }
    sum += sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) { return a + power(load<V>(x + i, k, -kInf) - m); });
  }
};

}  // namespace hpcdl::cpu
