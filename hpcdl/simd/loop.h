#pragma once
// Loops over a row of any length: whole registers, then one masked tail. The body is a generic lambda f(i, lanes) that
// passes `lanes` to load() and store(), so that one source line handles both.

#include "hpcdl/simd/vec.h"

namespace hpcdl::simd {

/// All lanes of a register.
struct Whole {};

template <class V, class T> inline V load(const T* p, Whole) { return V::load(p); }
template <class V, class T> inline V load(const T* p, int n) { return V::load(p, n); }
template <class V, class T> inline V load(const T* p, Whole, float) { return V::load(p); }
template <class V, class T> inline V load(const T* p, int n, float fill) { return V::load(p, n, fill); }
template <class V, class T> inline void store(T* p, V v, Whole) { v.store(p); }
template <class V, class T> inline void store(T* p, V v, int n) { v.store(p, n); }
template <class V, class T> inline void stream(T* p, V v, Whole) { v.stream(p); }
template <class V, class T> inline void stream(T* p, V v, int n) { v.store(p, n); }

template <class V> inline V first(V v, Whole, float) { return v; }
template <class V> inline V first(V v, int n, float fill) { return v.first(n, fill); }

/// Calls f(i, lanes) over [0, n). Sets of one lane have no tails here and below: the compiler does not see that they are
/// never reached.
template <class Isa, class F> inline void loop(std::int64_t n, F&& f) {
  constexpr int N = Vec<Isa>::N;
  std::int64_t i = 0;
  for (; i + N <= n; i += N) f(i, Whole{});
  if constexpr (N > 1)
    if (i < n) f(i, static_cast<int>(n - i));
}

/// The same, with a short first step so that `p + i` is aligned to whole registers from then on: for stream().
template <class Isa, class T, class F> inline void loop_aligned(const T* p, std::int64_t n, F&& f) {
  constexpr int N = Vec<Isa>::N;
  if constexpr (N == 1) {
    loop<Isa>(n, f);
  } else {
    const auto past = reinterpret_cast<std::uintptr_t>(p) / sizeof(T) % N;
    const std::int64_t head = past ? static_cast<std::int64_t>(N - past) : 0;
    if (head >= n) return loop<Isa>(n, f);
    if (head) f(std::int64_t{0}, static_cast<int>(head));
    loop<Isa>(n - head, [&](std::int64_t i, auto lanes) { f(head + i, lanes); });
  }
}

/// Sum over [0, n): f(acc, i, lanes) returns acc + its terms. Four chains hide the latency of the adder.
template <class Isa, class F> inline float sum_over(std::int64_t n, F&& f) {
  using V = Vec<Isa>;
  constexpr int N = V::N;
  V a(0.0f), b(0.0f), c(0.0f), d(0.0f);
  std::int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    a = f(a, i, Whole{});
    b = f(b, i + N, Whole{});
    c = f(c, i + 2 * N, Whole{});
    d = f(d, i + 3 * N, Whole{});
  }
  for (; i + N <= n; i += N) a = f(a, i, Whole{});
  if constexpr (N > 1)
    if (i < n) b = f(b, i, static_cast<int>(n - i));
  return reduce_add((a + b) + (c + d));
}

/// Largest f(i, lanes) over [0, n); -inf for n = 0. The unused lanes of a tail must not exceed the true maximum.
template <class Isa, class F> inline float max_over(std::int64_t n, F&& f) {
  using V = Vec<Isa>;
  constexpr int N = V::N;
  const V low(-__builtin_inff());
  V a = low, b = low, c = low, d = low;
  std::int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    a = max(f(i, Whole{}), a);
    b = max(f(i + N, Whole{}), b);
    c = max(f(i + 2 * N, Whole{}), c);
    d = max(f(i + 3 * N, Whole{}), d);
  }
  for (; i + N <= n; i += N) a = max(f(i, Whole{}), a);
  if constexpr (N > 1)
    if (i < n) b = max(f(i, static_cast<int>(n - i)), b);
  return reduce_max(max(max(a, b), max(c, d)));
}

/// Makes earlier stream() calls visible to other threads; required before a kernel returns.
template <class Isa> inline void stream_fence() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

}  // namespace hpcdl::simd
