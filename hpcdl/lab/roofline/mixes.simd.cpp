#include "hpcdl/lab/roofline/mixes.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {

namespace {

/// f(i) for i = 0, N, 2N .. n: two vectors at a time.
template <class V, class F> void each(std::int64_t n, F&& f) {
  for (std::int64_t i = 0; i + 2 * V::N <= n; i += 2 * V::N) f(i), f(i + V::N);
}

template <class V> void read_streams(const float* x, std::int64_t quarter) {
  V a(0.0f), b(0.0f), c(0.0f), d(0.0f);
  each<V>(quarter, [&](std::int64_t i) {
    a = a + V::load(x + i), b = b + V::load(x + quarter + i);
    c = c + V::load(x + 2 * quarter + i), d = d + V::load(x + 3 * quarter + i);
  });
  const V sum = a + b + c + d;
  __asm__ volatile("" : : "m"(sum));
}

}  // namespace

template <class Isa> double sweep_mix(Isa, Mix mix, float* y, std::int64_t n, std::int64_t repeats) {
  using V = simd::Vec<Isa>;
  const std::int64_t quarter = n / 4 / 1024 * 1024, third = n / 3 / 1024 * 1024, whole = n / 1024 * 1024;
  const V a(1.0f);
  double floats = 0;
  for (std::int64_t r = 0; r < repeats; ++r) {
    switch (mix) {
      case Mix::read:
        read_streams<V>(y, quarter);
        floats += 4.0 * static_cast<double>(quarter);
        break;
      case Mix::copy_past:
        each<V>(quarter, [&](std::int64_t i) {
          V::load(y + 2 * quarter + i).stream(y + i);
          V::load(y + 3 * quarter + i).stream(y + quarter + i);
        });
        floats += 4.0 * static_cast<double>(quarter);
        break;
      case Mix::triad_past:
        each<V>(third, [&](std::int64_t i) { (V::load(y + third + i) + V::load(y + 2 * third + i)).stream(y + i); });
        floats += 3.0 * static_cast<double>(third);
        break;
      case Mix::write_past:
        each<V>(whole, [&](std::int64_t i) { a.stream(y + i); });
        floats += static_cast<double>(whole);
        break;
      case Mix::write_set:
        __builtin_memset(y, 0, static_cast<std::size_t>(whole) * 4);
        floats += static_cast<double>(whole);
        break;
      case Mix::update:
        each<V>(whole, [&](std::int64_t i) { (V::load(y + i) * a).store(y + i); });
        floats += 2.0 * static_cast<double>(whole);
        break;
    }
    __asm__ volatile("" : : "r"(y) : "memory");
  }
#if defined(__SSE2__)
  __asm__ volatile("sfence" ::: "memory");
#endif
  return 4.0 * floats;
}

template double sweep_mix(simd::Isa, Mix, float*, std::int64_t, std::int64_t);

}  // namespace hpcdl::cpu
