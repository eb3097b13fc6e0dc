#include <type_traits>

#include "hpcdl/simd/tiles.h"
#include "hpcdl/simd/vec.h"
#include "tools/roof_kernels.h"

namespace hpcdl::cpu {

namespace {

// Enough independent sums to hide the latency of an instruction (an fma: 4 cycles, two per cycle; products of bf16
// pairs take longer) within the register file: 16 registers, with AVX-512 32.
template <class Isa> constexpr int kSums = std::is_same_v<Isa, simd::Avx512> ? 24 : 12;

/// Keeps the compiler from dropping the loop that made x.
template <class T> void use(const T& x) { __asm__ volatile("" : : "m"(x)); }

}  // namespace

template <class Isa> double spin_f32(Isa, std::int64_t rounds) {
  constexpr int kChains = kSums<Isa>;
  using V = simd::Vec<Isa>;
  V acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = V(static_cast<float>(i));
  const V a(0.999f), b(1e-3f);
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) acc[i] = fma(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = acc[0] + acc[i];
  use(acc[0]);
  return 2.0 * kChains * V::N * static_cast<double>(rounds);
}

template <class Isa> double spin_bf16(Isa isa, std::int64_t rounds) {
  [[maybe_unused]] constexpr int kChains = kSums<Isa>;
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) {
    __m512 acc[kChains];
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
    const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    use(acc[0]);
    return 4.0 * 16 * kChains * static_cast<double>(rounds);
  }
#endif
  return spin_f32(isa, rounds);
}

template <class Isa> double spin_f64(Isa, std::int64_t rounds) {
  constexpr int kChains = kSums<Isa>;
  const auto spin = [&](auto zero, auto a, auto b, auto step, auto add, double lanes) {
    decltype(zero) acc[kChains];
    for (auto& x : acc) x = zero;
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) acc[i] = step(acc[i], a, b);
    }
    for (int i = 1; i < kChains; ++i) acc[0] = add(acc[0], acc[i]);
    use(acc[0]);
    return 2.0 * kChains * lanes * static_cast<double>(rounds);
  };
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>)
    return spin(
        _mm512_setzero_pd(), _mm512_set1_pd(0.999), _mm512_set1_pd(1e-3),
        [](__m512d x, __m512d a, __m512d b) { return _mm512_fmadd_pd(x, a, b); },
        [](__m512d x, __m512d y) { return _mm512_add_pd(x, y); }, 8);
#endif
#if defined(__AVX2__)
  if constexpr (std::is_same_v<Isa, simd::Avx2>)
    return spin(
        _mm256_setzero_pd(), _mm256_set1_pd(0.999), _mm256_set1_pd(1e-3),
        [](__m256d x, __m256d a, __m256d b) { return _mm256_fmadd_pd(x, a, b); },
        [](__m256d x, __m256d y) { return _mm256_add_pd(x, y); }, 4);
#endif
  return spin(
      0.0, 0.999, 1e-3, [](double x, double a, double b) { return x * a + b; },
      [](double x, double y) { return x + y; }, 1);
}

template <class Isa> double spin_i8(Isa isa, std::int64_t rounds) {
  [[maybe_unused]] constexpr int kChains = 12;  // with 24, GCC 12 moves them through memory
#if defined(__AVX512VNNI__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) {
    __m512i acc[kChains];
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_epi32(i);
    const __m512i a = _mm512_set1_epi8(1);
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, a);
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    use(acc[0]);
    return 8.0 * 16 * kChains * static_cast<double>(rounds);
  }
#endif
#if defined(__AVX2__)
  if constexpr (std::is_same_v<Isa, simd::Avx2>) {
    __m256i acc[kChains];
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi32(i);
    __m256i a = _mm256_set1_epi8(1);
    const __m256i ones = _mm256_set1_epi16(1);
    for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) {
        __asm__ volatile("" : "+x"(a));  // the products must be computed again
        acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
      }
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    use(acc[0]);
    return 8.0 * 8 * kChains * static_cast<double>(rounds);
  }
#endif
  return spin_f32(isa, rounds);
}

template <class Isa> double spin_tiles(Isa isa, bool bytes, std::int64_t rounds) {
#if defined(HPCDL_SIMD_AVX512)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) {
    simd::TileShapes s;
    for (int t = 0; t < 8; ++t) s.row_bytes[t] = 64, s.rows[t] = 16;
    simd::load_shapes(s);  // clears the registers
    const auto spin = [rounds](auto dot) {
      for (std::int64_t r = 0; r < rounds; ++r) dot();
    };
    if (bytes)
      spin([] {
        simd::tile_dot_u8s8<0, 4, 6>(), simd::tile_dot_u8s8<1, 4, 7>(), simd::tile_dot_u8s8<2, 5, 6>(),
            simd::tile_dot_u8s8<3, 5, 7>();
      });
    else
      spin([] {
        simd::tile_dot_bf16<0, 4, 6>(), simd::tile_dot_bf16<1, 4, 7>(), simd::tile_dot_bf16<2, 5, 6>(),
            simd::tile_dot_bf16<3, 5, 7>();
      });
    simd::release_tiles();
    return 2.0 * 4 * 16 * 16 * (bytes ? 64 : 32) * static_cast<double>(rounds);
  }
#endif
  return bytes ? spin_i8(isa, rounds) : spin_bf16(isa, rounds);
}

namespace {

template <class Isa> double read(Isa, const float* x, std::int64_t n, std::int64_t repeats) {
  using V = simd::Vec<Isa>;
  // Eight variables and no array: GCC 12 keeps an array in memory here, and a store for each load halves the rate of
  // L1.
  V a(0.0f), b(0.0f), c(0.0f), d(0.0f), e(0.0f), f(0.0f), g(0.0f), h(0.0f);
  const auto add = [&x](V& sum, std::int64_t i) {
    sum = sum + V::load(x + i);
    __asm__ volatile("" : "+x"(sum.v));  // in ascending order: otherwise the prefetcher loads a quarter less from L2
  };
  for (std::int64_t r = 0; r < repeats; ++r) {
    for (std::int64_t i = 0; i < n; i += 8 * V::N) {
      add(a, i), add(b, i + V::N), add(c, i + 2 * V::N), add(d, i + 3 * V::N);
      add(e, i + 4 * V::N), add(f, i + 5 * V::N), add(g, i + 6 * V::N), add(h, i + 7 * V::N);
    }
    __asm__ volatile("" : "+r"(x));  // each sweep reads again
  }
  use(((a + b) + (c + d)) + ((e + f) + (g + h)));
  return 4.0 * static_cast<double>(n * repeats);
}

/// y = f(i); `moved` bytes per element.
template <class Isa, bool kStreaming, class F>
double write(Isa, float* y, std::int64_t n, std::int64_t repeats, double moved, F f) {
  using V = simd::Vec<Isa>;
  constexpr int kStreams = 4;
  for (std::int64_t r = 0; r < repeats; ++r) {
    for (std::int64_t i = 0; i < n; i += std::int64_t{kStreams} * V::N) {
      V v[kStreams];
#pragma GCC unroll 4
      for (int k = 0; k < kStreams; ++k) v[k] = f(i + k * V::N);
#pragma GCC unroll 4
      for (int k = 0; k < kStreams; ++k) {
        if constexpr (kStreaming) v[k].stream(y + i + k * V::N);
        else v[k].store(y + i + k * V::N);
      }
    }
    __asm__ volatile("" : "+r"(y));  // each sweep writes again
  }
#if defined(__SSE2__)
  if (kStreaming) __asm__ volatile("sfence" ::: "memory");
#endif
  return moved * static_cast<double>(n * repeats);
}

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

template <class Isa> double sweep_within(Isa, Sweep way, float* y, std::int64_t n, std::int64_t repeats) {
  using V = simd::Vec<Isa>;
  const std::int64_t quarter = n / 4 / 1024 * 1024, third = n / 3 / 1024 * 1024, whole = n / 1024 * 1024;
  const V a(1.0f);
  double floats = 0;
  for (std::int64_t r = 0; r < repeats; ++r) {
    switch (way) {
      case Sweep::read_streams:
        read_streams<V>(y, quarter);
        floats += 4.0 * static_cast<double>(quarter);
        break;
      case Sweep::copy_streams:
        each<V>(quarter, [&](std::int64_t i) {
          V::load(y + 2 * quarter + i).stream(y + i);
          V::load(y + 3 * quarter + i).stream(y + quarter + i);
        });
        floats += 4.0 * static_cast<double>(quarter);
        break;
      case Sweep::triad_streams:
        each<V>(third, [&](std::int64_t i) { (V::load(y + third + i) + V::load(y + 2 * third + i)).stream(y + i); });
        floats += 3.0 * static_cast<double>(third);
        break;
      case Sweep::write_streams:
        each<V>(whole, [&](std::int64_t i) { a.stream(y + i); });
        floats += static_cast<double>(whole);
        break;
      case Sweep::write_set:
        __builtin_memset(y, 0, static_cast<std::size_t>(whole) * 4);
        floats += static_cast<double>(whole);
        break;
      case Sweep::update:
        each<V>(whole, [&](std::int64_t i) { (V::load(y + i) * a).store(y + i); });
        floats += 2.0 * static_cast<double>(whole);
        break;
      default: break;
    }
    __asm__ volatile("" : : "r"(y) : "memory");
  }
#if defined(__SSE2__)
  __asm__ volatile("sfence" ::: "memory");
#endif
  return 4.0 * floats;
}

}  // namespace

template <class Isa>
double sweep(Isa isa, Sweep kind, float* y, const float* x, const float* z, std::int64_t n, std::int64_t repeats) {
  using V = simd::Vec<Isa>;
  const auto same = [x](std::int64_t i) { return V::load(x + i); };
  const auto scaled = [x, z](std::int64_t i) { return fma(V::load(z + i), V(0.5f), V::load(x + i)); };
  switch (kind) {
    case Sweep::read: return read(isa, x, n, repeats);
    case Sweep::copy: return write<Isa, false>(isa, y, n / 2, repeats, 8, same);
    case Sweep::copy_streaming: return write<Isa, true>(isa, y, n / 2, repeats, 8, same);
    case Sweep::triad: return write<Isa, false>(isa, y, n / 3, repeats, 12, scaled);
    case Sweep::triad_streaming: return write<Isa, true>(isa, y, n / 3, repeats, 12, scaled);
    default: return sweep_within(isa, kind, y, n, repeats);
  }
}

using simd::Isa;
template double spin_f32(Isa, std::int64_t);
template double spin_f64(Isa, std::int64_t);
template double spin_bf16(Isa, std::int64_t);
template double spin_i8(Isa, std::int64_t);
template double spin_tiles(Isa, bool, std::int64_t);
template double sweep(Isa, Sweep, float*, const float*, const float*, std::int64_t, std::int64_t);

}  // namespace hpcdl::cpu
