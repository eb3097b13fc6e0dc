// Philox and Box-Muller in double, eight or four weights at a time. Logarithm and cosine are series that are good to
// 2^-39; a value whose float is not the same 2^-36 to either side is left to the C library, one in some 3,000.

#if defined(HPCDL_SIMD_AVX512) || defined(HPCDL_SIMD_AVX2)
#include <immintrin.h>
#endif

#include "hpcdl/models/draw.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::models {
namespace {

#if defined(HPCDL_SIMD_AVX512) || defined(HPCDL_SIMD_AVX2)
/// Doubles in a register, and 64-bit integers in another.
template <class Isa> struct Wide;

#if defined(HPCDL_SIMD_AVX512)
template <> struct Wide<simd::Avx512> {
  static constexpr int N = 8;
  using D = __m512d;
  using I = __m512i;
  static D num(double x) { return _mm512_set1_pd(x); }
  static I all(std::uint64_t x) { return _mm512_set1_epi64(static_cast<std::int64_t>(x)); }
  static I count() { return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7); }
  static D add(D a, D b) { return _mm512_add_pd(a, b); }
  static D sub(D a, D b) { return _mm512_sub_pd(a, b); }
  static D mul(D a, D b) { return _mm512_mul_pd(a, b); }
  static D div(D a, D b) { return _mm512_div_pd(a, b); }
  static D sqrt(D a) { return _mm512_sqrt_pd(a); }
  static D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
  static D less(D c, D a, D b) { return _mm512_fnmadd_pd(a, b, c); }
  static I plus(I a, I b) { return _mm512_add_epi64(a, b); }
  static I minus(I a, I b) { return _mm512_sub_epi64(a, b); }
  static I both(I a, I b) { return _mm512_and_si512(a, b); }
  static I either(I a, I b) { return _mm512_or_si512(a, b); }
  static I odd(I a, I b, I c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static I product(I a, I b) { return _mm512_mul_epu32(a, b); }
  /// The high half of each lane in its low half; a shuffle, since shifts would wait for the multiplier's port.
  static I high(I a) { return _mm512_shuffle_epi32(a, _MM_PERM_DDBB); }
  template <int n> static I left(I a) { return _mm512_slli_epi64(a, n); }
  template <int n> static I right(I a) { return _mm512_srli_epi64(a, n); }
  static D as_double(I a) { return _mm512_castsi512_pd(a); }
  static I as_bits(D a) { return _mm512_castpd_si512(a); }
  /// b where the sign bit of `which` is set.
  static D choose(I which, D a, D b) { return _mm512_mask_blend_pd(_mm512_movepi64_mask(which), a, b); }
  /// Writes low * scale; the lanes in which low and high are different floats.
  static unsigned write(float* to, D low, D high, float scale) {
    const __m256 a = _mm512_cvtpd_ps(low), b = _mm512_cvtpd_ps(high);
    _mm256_storeu_ps(to, _mm256_mul_ps(a, _mm256_set1_ps(scale)));
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)));
  }
};
#else
template <> struct Wide<simd::Avx2> {
  static constexpr int N = 4;
  using D = __m256d;
  using I = __m256i;
  static D num(double x) { return _mm256_set1_pd(x); }
  static I all(std::uint64_t x) { return _mm256_set1_epi64x(static_cast<std::int64_t>(x)); }
  static I count() { return _mm256_setr_epi64x(0, 1, 2, 3); }
  static D add(D a, D b) { return _mm256_add_pd(a, b); }
  static D sub(D a, D b) { return _mm256_sub_pd(a, b); }
  static D mul(D a, D b) { return _mm256_mul_pd(a, b); }
  static D div(D a, D b) { return _mm256_div_pd(a, b); }
  static D sqrt(D a) { return _mm256_sqrt_pd(a); }
  static D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
  static D less(D c, D a, D b) { return _mm256_fnmadd_pd(a, b, c); }
  static I plus(I a, I b) { return _mm256_add_epi64(a, b); }
  static I minus(I a, I b) { return _mm256_sub_epi64(a, b); }
  static I both(I a, I b) { return _mm256_and_si256(a, b); }
  static I either(I a, I b) { return _mm256_or_si256(a, b); }
  static I odd(I a, I b, I c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  static I product(I a, I b) { return _mm256_mul_epu32(a, b); }
  static I high(I a) { return _mm256_shuffle_epi32(a, 0xF5); }
  template <int n> static I left(I a) { return _mm256_slli_epi64(a, n); }
  template <int n> static I right(I a) { return _mm256_srli_epi64(a, n); }
  static D as_double(I a) { return _mm256_castsi256_pd(a); }
  static I as_bits(D a) { return _mm256_castpd_si256(a); }
  static D choose(I which, D a, D b) { return _mm256_blendv_pd(a, b, as_double(which)); }
  static unsigned write(float* to, D low, D high, float scale) {
    const __m128 a = _mm256_cvtpd_ps(low), b = _mm256_cvtpd_ps(high);
    _mm_storeu_ps(to, _mm_mul_ps(a, _mm_set1_ps(scale)));
    return static_cast<unsigned>(_mm_movemask_ps(_mm_cmp_ps(a, b, _CMP_NEQ_UQ)));
  }
};
#endif

template <class Isa> struct Draw : Wide<Isa> {
  using W = Wide<Isa>;
  using D = typename W::D;
  using I = typename W::I;

  template <class... C> static D series(D z, double first, C... rest) {
    if constexpr (sizeof...(rest) == 0) return W::num(first);
    else return W::fma(series(z, rest...), z, W::num(first));
  }

  /// What all blocks of a stream share. In memory, where instructions read them from as they are.
  struct Stream {
    std::uint64_t low, high, keys[10][2];
    explicit Stream(const Rng& rng) : low(rng.stream), high(rng.stream >> 32) {
      auto k0 = static_cast<std::uint32_t>(rng.seed), k1 = static_cast<std::uint32_t>(rng.seed >> 32);
      for (auto& key : keys) {
        key[0] = k0, key[1] = k1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
    }
  };

  /// The first two words of blocks `index`, each in the low half of its lane; the high half is anything.
  static void philox(I index, const Stream& stream, I& first, I& second) {
    I c0 = index, c1 = W::template right<32>(index), c2 = W::all(stream.low), c3 = W::all(stream.high);
    for (const auto& key : stream.keys) {
      const I p0 = W::product(W::all(0xD2511F53u), c0), p1 = W::product(W::all(0xCD9E8D57u), c2);
      c0 = W::odd(W::high(p1), c1, W::all(key[0]));
      c1 = p1;
      c2 = W::odd(W::high(p0), c3, W::all(key[1]));
      c3 = p0;
    }
    first = c0, second = c1;
  }

  /// (word + 0.5) / 2^32, exact.
  static D unit(I word) {
    const I bits = W::either(W::both(word, W::all(0xFFFFFFFFu)), W::all(0x4330000000000000u));  // 2^52 + word
    return W::mul(W::sub(W::as_double(bits), W::num(0x1p52 - 0.5)), W::num(0x1p-32));
  }

  /// ln u of u in (0, 1): u = 2^e m with m in [sqrt(1/2), sqrt(2)), and ln m = 2 artanh((m - 1) / (m + 1)).
  static D log(D u) {
    constexpr std::uint64_t kOne = 0x3FF0000000000000u, kRootOfHalf = 0x3FE6A09E667F3BCDu;
    const I bits = W::as_bits(u);
    const I biased = W::template right<52>(W::plus(bits, W::all(kOne - kRootOfHalf)));
    const D m = W::as_double(W::minus(bits, W::template left<52>(W::minus(biased, W::all(1023)))));
    const D e = W::sub(W::as_double(W::either(biased, W::all(0x4330000000000000u))), W::num(0x1p52 + 1023));
    const D s = W::div(W::sub(m, W::num(1)), W::add(m, W::num(1)));
    const D z = W::mul(s, s), two_s = W::add(s, s);
    const D p = series(z, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13);
    return W::fma(e, W::num(0.6931471805599453), W::fma(W::mul(two_s, z), p, two_s));
  }

  /// cos x of x in [0, 2 pi]: also where it is next to 0, since x less its quarters is taken with pi/2 in two parts.
  static D cos(D x) {
    constexpr double kRound = 0x1.8p52;
    const D shifted = W::fma(x, W::num(0.6366197723675814), W::num(kRound));
    const I quarter = W::as_bits(shifted);
    const D q = W::sub(shifted, W::num(kRound));
    const D r = W::less(W::less(x, q, W::num(1.5707963267948966)), q, W::num(6.123233995736766e-17)), z = W::mul(r, r);
    const D sine = W::fma(
        W::mul(r, z), series(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800), r);
    const D cosine = series(z, 1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600);
    const D value = W::choose(W::template left<63>(quarter), cosine, sine);
    // Negative in the second and third quarter.
    const I sign = W::template left<62>(W::both(W::plus(quarter, W::all(1)), W::all(2)));
    return W::as_double(W::odd(W::as_bits(value), sign, W::all(0)));
  }

  static unsigned step(float* to, const Stream& stream, std::uint64_t first, float scale) {
    I a, b;
    philox(W::plus(W::all(first), W::count()), stream, a, b);
    const D radius = W::sqrt(W::mul(W::num(-2), log(unit(a))));
    const D y = W::mul(radius, cos(W::mul(W::num(6.283185307179586), unit(b))));
    return W::write(to, W::mul(y, W::num(1 - 0x1p-36)), W::mul(y, W::num(1 + 0x1p-36)), scale);
  }
};
#endif

}  // namespace

template <class Isa>
std::int64_t draw_normal_chunk(Isa, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale,
                               std::int32_t* hard) {
#if defined(HPCDL_SIMD_AVX512) || defined(HPCDL_SIMD_AVX2)
  using Kernel = Draw<Isa>;
  const typename Kernel::Stream stream(rng);
  std::int64_t unknown = 0;
  const auto note = [&](unsigned lanes, std::int64_t at, std::int64_t count) {
    for (; lanes != 0; lanes &= lanes - 1)
      if (const int lane = __builtin_ctz(lanes); lane < count) hard[unknown++] = static_cast<std::int32_t>(at + lane);
  };
  std::int64_t i = 0;
  for (; i + Kernel::N <= n; i += Kernel::N)
    note(Kernel::step(values + i, stream, first + static_cast<std::uint64_t>(i), scale), i, Kernel::N);
  if (i < n) {
    float tail[Kernel::N];
    note(Kernel::step(tail, stream, first + static_cast<std::uint64_t>(i), scale), i, n - i);
    for (std::int64_t k = 0; i + k < n; ++k) values[i + k] = tail[k];
  }
  return unknown;
#else
  (void)values, (void)n, (void)rng, (void)first, (void)scale, (void)hard;
  return -1;
#endif
}

template std::int64_t draw_normal_chunk(simd::Isa, float*, std::int64_t, const Rng&, std::uint64_t, float,
                                        std::int32_t*);

}  // namespace hpcdl::models
