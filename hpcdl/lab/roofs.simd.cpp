#include <type_traits>

#include "hpcdl/lab/roof_kernels.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {

namespace {

// Enough independent sums to hide the latency of an fma (4 cycles, two per cycle) within the register file.
constexpr int kChains = 12;

/// Keeps the compiler from dropping the loop that made x.
template <class T> void use(const T& x) {
  __asm__ volatile("" : : "m"(x));
}

}  // namespace

template <class Isa> double spin_f32(Isa, std::int64_t rounds) {
  using V = simd::Vec<Isa>;
  V acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = V(static_cast<float>(i));
  const V a(0.999f), b(1e-3f);
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = fma(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = acc[0] + acc[i];
  use(acc[0]);
  return 2.0 * kChains * V::N * static_cast<double>(rounds);
}

template <class Isa> double spin_bf16(Isa isa, std::int64_t rounds) {
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) {
    __m512 acc[kChains];
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
    const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
      for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    use(acc[0]);
    return 4.0 * 16 * kChains * static_cast<double>(rounds);
  }
#endif
  return spin_f32(isa, rounds);
}

template <class Isa> double spin_i8(Isa isa, std::int64_t rounds) {
#if defined(__AVX512VNNI__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) {
    __m512i acc[kChains];
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_epi32(i);
    const __m512i a = _mm512_set1_epi8(1);
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
      for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, a);
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    use(acc[0]);
    return 8.0 * 16 * kChains * static_cast<double>(rounds);
  }
#endif
  return spin_f32(isa, rounds);
}

template <class Isa> double sweep_read(Isa, const float* x, std::int64_t n) {
  using V = simd::Vec<Isa>;
  constexpr int kStreams = 8;
  V acc[kStreams];
  for (auto& a : acc) a = V(0.0f);
  const std::int64_t step = std::int64_t{kStreams} * V::N;
  for (std::int64_t i = 0; i + step <= n; i += step) {
#pragma GCC unroll 8
    for (int k = 0; k < kStreams; ++k) acc[k] = acc[k] + V::load(x + i + k * V::N);
  }
  for (int k = 1; k < kStreams; ++k) acc[0] = acc[0] + acc[k];
  use(acc[0]);
  return 4.0 * static_cast<double>(n / step * step);
}

template <class Isa> double sweep_copy(Isa, float* y, const float* x, std::int64_t n) {
  using V = simd::Vec<Isa>;
  const std::int64_t whole = n / V::N * V::N;
  for (std::int64_t i = 0; i < whole; i += V::N) V::load(x + i).stream(y + i);
#if defined(__SSE2__)
  __asm__ volatile("sfence" ::: "memory");
#endif
  return 8.0 * static_cast<double>(whole);
}

template <class Isa> double sweep_copy_cached(Isa, float* y, const float* x, std::int64_t n) {
  using V = simd::Vec<Isa>;
  constexpr int kStreams = 4;
  const std::int64_t step = std::int64_t{kStreams} * V::N, whole = n / step * step;
  for (std::int64_t i = 0; i < whole; i += step) {
    V v[kStreams];
#pragma GCC unroll 4
    for (int k = 0; k < kStreams; ++k) v[k] = V::load(x + i + k * V::N);
#pragma GCC unroll 4
    for (int k = 0; k < kStreams; ++k) v[k].store(y + i + k * V::N);
  }
  use(y[0]);
  return 8.0 * static_cast<double>(whole);
}

using simd::Isa;
template double spin_f32(Isa, std::int64_t);
template double spin_bf16(Isa, std::int64_t);
template double spin_i8(Isa, std::int64_t);
template double sweep_read(Isa, const float*, std::int64_t);
template double sweep_copy(Isa, float*, const float*, std::int64_t);
template double sweep_copy_cached(Isa, float*, const float*, std::int64_t);

}  // namespace hpcdl::cpu
