// Philox and Box-Muller in double, eight or four weights per register. Logarithm, root and cosine together have a
// relative error below 2^-38; a value that would round to another float if it changed by 2^-37 of itself, or whose
// cosine is close to 0, is left to the C library: about one in 2,000.

#if defined(HPCDL_SIMD_AVX512) || defined(HPCDL_SIMD_AVX2)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hpcdl/models/draw.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::models {
namespace {

#if defined(HPCDL_SIMD_AVX512) || defined(HPCDL_SIMD_AVX2)
/// Operations on a register of doubles, and on one of 64-bit integers.
template <class Isa> struct Wide;

/// first + z (second + z (...)).
template <class W, class... C> typename W::D series(typename W::D z, double first, C... rest) {
  if constexpr (sizeof...(rest) == 0) return W::num(first);
  else return W::fma(series<W>(z, rest...), z, W::num(first));
}

#if defined(HPCDL_SIMD_AVX512)
template <> struct Wide<simd::Avx512> {
  static constexpr int N = 8;
  using D = __m512d;
  using I = __m512i;
  static D num(double x) { return _mm512_set1_pd(x); }
  static I all(std::uint64_t x) { return _mm512_set1_epi64(static_cast<std::int64_t>(x)); }
  static I count() { return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7); }
  static D sub(D a, D b) { return _mm512_sub_pd(a, b); }
  static D mul(D a, D b) { return _mm512_mul_pd(a, b); }
  static D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
  static D magnitude(D a) { return _mm512_abs_pd(a); }
  static I plus(I a, I b) { return _mm512_add_epi64(a, b); }
  static I odd(I a, I b, I c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  /// (a and mask) or bits.
  static I within(I a, I mask, I bits) { return _mm512_ternarylogic_epi64(a, mask, bits, 0xEA); }
  static I product(I a, I b) { return _mm512_mul_epu32(a, b); }
  /// The high half of each lane in its low half; a shuffle, because shifts would compete for the multiplier's port.
  static I high(I a) { return _mm512_shuffle_epi32(a, _MM_PERM_DDBB); }
  template <int n> static I right(I a) { return _mm512_srli_epi64(a, n); }
  static D as_double(I a) { return _mm512_castsi512_pd(a); }
  static I as_bits(D a) { return _mm512_castpd_si512(a); }
  /// The lanes in which `a` has no bit of `mask`, or x < y.
  static unsigned none_or_less(I a, I mask, D x, D y) {
    return _mm512_testn_epi64_mask(a, mask) | unsigned{_mm512_cmp_pd_mask(x, y, _CMP_LT_OQ)};
  }
  static void write(float* to, D y, float scale) {
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm512_cvtpd_ps(y), _mm256_set1_ps(scale)));
  }

  /// -2 ln(w / 2^32). w = 2^e m with m in [3/4, 3/2); c is the middle of the sixteenth of m's binade that contains m,
  /// but 1 on both sides of 1, where the logarithm of c is then exact; and ln m = ln c + ln(1 + r), m = c (1 + r). r is
  /// in [-1/32, 1/16], where the polynomial has an error of 2^-40. 64 ln 2 is included in the table.
  static D minus_two_log(D w) {
    alignas(64) static constexpr double kInverse[16] = {
        0x1.0000000000000p+0, 0x1.d41d41d41d41dp-1, 0x1.bacf914c1bad0p-1, 0x1.a41a41a41a41ap-1,
        0x1.8f9c18f9c18fap-1, 0x1.7d05f417d05f4p-1, 0x1.6c16c16c16c17p-1, 0x1.5c9882b931057p-1,
        0x1.4e5e0a72f0539p+0, 0x1.4141414141414p+0, 0x1.3521cfb2b78c1p+0, 0x1.29e4129e4129ep+0,
        0x1.1f7047dc11f70p+0, 0x1.15b1e5f75270dp+0, 0x1.0c9714fbcda3bp+0, 0x1.0000000000000p+0};
    alignas(64) static constexpr double kLog[16] = {
        0x1.62e42fefa39efp+5, 0x1.617522c6f5484p+5, 0x1.609185909fa05p+5, 0x1.5fb9e49c05142p+5,
        0x1.5eed0ce1f7d73p+5, 0x1.5e29f740eb57ap+5, 0x1.5d6fc07fcd9c8p+5, 0x1.5cbda30df34e6p+5,
        0x1.672a13902d981p+5, 0x1.668636edf04acp+5, 0x1.65e8a81c4dd37p+5, 0x1.6550ef85a650fp+5,
        0x1.64bea265dbe36p+5, 0x1.6431610575a6ep+5, 0x1.63a8d540489c9p+5, 0x1.62e42fefa39efp+5};
    const D m = _mm512_getmant_pd(w, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
    const D e = _mm512_getexp_pd(mul(w, num(4.0 / 3)));  // 1.5 * 2^k also rounds to the next power of two
    const I place = right<48>(as_bits(m));               // only four bits of it count
    const D inverse = _mm512_permutex2var_pd(_mm512_load_pd(kInverse), place, _mm512_load_pd(kInverse + 8));
    const D log = _mm512_permutex2var_pd(_mm512_load_pd(kLog), place, _mm512_load_pd(kLog + 8));
    const D r = _mm512_fmsub_pd(m, inverse, num(1));
    const D p = series<Wide>(r, -0x1.0000000000ae2p+1, 0x1.fffffffe4d3a5p-1, -0x1.555554c81c133p-1,
                             0x1.0000169c6f19bp-1, -0x1.99a3bb1fd94e7p-2, 0x1.551426b0bd1bfp-2, -0x1.0aef0287677fdp-2);
    return fma(r, p, fma(e, num(-0x1.62e42fefa39efp+0), log));
  }
  /// Three terms of a series about the instruction's estimate, whose error is 2^-14: an error of 2^-40 remains.
  static D root(D x) {
    const D inverse = _mm512_rsqrt14_pd(x), y = mul(x, inverse);
    const D off = _mm512_fnmadd_pd(y, inverse, num(1));
    return fma(mul(y, off), fma(off, num(3.0 / 8), num(1.0 / 2)), y);
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
  static D sub(D a, D b) { return _mm256_sub_pd(a, b); }
  static D mul(D a, D b) { return _mm256_mul_pd(a, b); }
  static D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
  static D magnitude(D a) { return _mm256_andnot_pd(num(-0.0), a); }
  static I plus(I a, I b) { return _mm256_add_epi64(a, b); }
  static I odd(I a, I b, I c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  static I within(I a, I mask, I bits) { return _mm256_or_si256(_mm256_and_si256(a, mask), bits); }
  static I product(I a, I b) { return _mm256_mul_epu32(a, b); }
  static I high(I a) { return _mm256_shuffle_epi32(a, 0xF5); }
  template <int n> static I right(I a) { return _mm256_srli_epi64(a, n); }
  static D as_double(I a) { return _mm256_castsi256_pd(a); }
  static I as_bits(D a) { return _mm256_castpd_si256(a); }
  static unsigned none_or_less(I a, I mask, D x, D y) {
    const I none = _mm256_cmpeq_epi64(_mm256_and_si256(a, mask), _mm256_setzero_si256());
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_or_pd(as_double(none), _mm256_cmp_pd(x, y, _CMP_LT_OQ))));
  }
  static void write(float* to, D y, float scale) {
    _mm_storeu_ps(to, _mm_mul_ps(_mm256_cvtpd_ps(y), _mm_set1_ps(scale)));
  }

  /// -2 ln(w / 2^32): w = 2^e m with m in [sqrt(1/2), sqrt(2)), and ln m = 2 artanh((m - 1) / (m + 1)).
  static D minus_two_log(D w) {
    constexpr std::uint64_t kOne = 0x3FF0000000000000u, kRootOfHalf = 0x3FE6A09E667F3BCDu;
    const I bits = as_bits(w);
    const I biased = right<52>(plus(bits, all(kOne - kRootOfHalf)));
    const D m = as_double(_mm256_sub_epi64(bits, _mm256_slli_epi64(_mm256_sub_epi64(biased, all(1023)), 52)));
    const D e = sub(as_double(_mm256_or_si256(biased, all(0x4330000000000000u))), num(0x1p52 + 1023 + 32));
    const D s = _mm256_div_pd(sub(m, num(1)), _mm256_add_pd(m, num(1))), z = mul(s, s);
    const D p = series<Wide>(z, -4.0, -4.0 / 3, -4.0 / 5, -4.0 / 7, -4.0 / 9, -4.0 / 11, -4.0 / 13);
    return fma(s, p, mul(e, num(-0x1.62e42fefa39efp+0)));
  }
  static D root(D x) { return _mm256_sqrt_pd(x); }
};
#endif

template <class Isa> struct Draw : Wide<Isa> {
  using W = Wide<Isa>;
  using D = typename W::D;
  using I = typename W::I;

  /// Values shared by all blocks of a stream, in memory, so that instructions use them as memory operands.
  struct Stream {
    std::uint64_t low, high, keys[10][2];
    explicit Stream(const Rng& rng) : low(rng.stream & 0xFFFFFFFFu), high(rng.stream >> 32) {
      auto k0 = static_cast<std::uint32_t>(rng.seed), k1 = static_cast<std::uint32_t>(rng.seed >> 32);
      for (auto& key : keys) {
        key[0] = k0, key[1] = k1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
    }
  };

  /// The first two words of a block for each lane, in the low half of the lane; the high half is undefined.
  struct Words {
    I first, second;
  };

  /// U registers of blocks interleaved, so that one multiplies while another waits for its product.
  template <int U> static void philox(std::uint64_t index, const Stream& stream, Words (&to)[U]) {
    I c0[U], c1[U], c2[U], c3[U];
    for (int u = 0; u < U; ++u) {
      c0[u] = W::plus(W::all(index + static_cast<std::uint64_t>(u * W::N)), W::count());
      c1[u] = W::template right<32>(c0[u]), c2[u] = W::all(stream.low), c3[u] = W::all(stream.high);
    }
    for (const auto& key : stream.keys)
      for (int u = 0; u < U; ++u) {
        const I p0 = W::product(W::all(0xD2511F53u), c0[u]), p1 = W::product(W::all(0xCD9E8D57u), c2[u]);
        c0[u] = W::odd(W::high(p1), c1[u], W::all(key[0]));
        c1[u] = p1;
        c2[u] = W::odd(W::high(p0), c3[u], W::all(key[1]));
        c3[u] = p0;
      }
    for (int u = 0; u < U; ++u) to[u] = {c0[u], c1[u]};
  }

  /// word + 0.5, exact.
  static D middle(I word) {
    return W::sub(W::as_double(W::within(word, W::all(0xFFFFFFFFu), W::all(0x4330000000000000u))),
                  W::num(0x1p52 - 0.5));
  }

  /// Draws U registers of values. Returns the lanes, counted from the first register, that are left to the C library.
  template <int U> static std::uint64_t step(float* to, const Stream& stream, std::uint64_t first, float scale) {
    Words words[U];
    philox(first, stream, words);
    std::uint64_t hard = 0;
    for (int u = 0; u < U; ++u) {
      const D radius = W::root(W::minus_two_log(middle(words[u].first)));
      // cos(2 pi v) = sin(pi / 2 (|4 v - 2| - 1)), and 2^30 times this factor of pi / 2, r, is exact.
      const D r = W::sub(W::magnitude(W::sub(middle(words[u].second), W::num(0x1p31))), W::num(0x1p30));
      const D z = W::mul(r, r);
      const D sine = W::mul(r, series<W>(z, 0x1.921fb54442b5fp-30, -0x1.4abbce6247ec4p-91, 0x1.466bc66dc7d8ep-154,
                                         -0x1.32d2c96c611dbp-218, 0x1.5076fe9f642fap-283, -0x1.e297cfd41567fp-349,
                                         0x1.d4ec697c6ede0p-415));
      const D y = W::mul(radius, sine);
      W::write(to + u * W::N, y, scale);
      // Of y's 52 bits, the float keeps 23. Hard: the other 29 are within 2^16 of their midpoint; or the angle of the
      // sine is below 2^-12, where the rounding error of the C library's 2 pi v affects its cosine.
      constexpr std::uint64_t kHalf = 1 << 28, kNear = 1 << 16, kOther = (1 << 29) - 2 * kNear;
      const I shifted = W::plus(W::as_bits(y), W::all(kNear - kHalf));
      constexpr double kAngle = 0x1p18 / 1.5707963267948966;
      hard |= std::uint64_t{W::none_or_less(shifted, W::all(kOther), z, W::num(kAngle * kAngle))} << (u * W::N);
    }
    return hard;
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
  const auto note = [&](std::uint64_t lanes, std::int64_t at, std::int64_t count) {
    for (; lanes != 0; lanes &= lanes - 1)
      if (const int lane = std::countr_zero(lanes); lane < count)
        hard[unknown++] = static_cast<std::int32_t>(at + lane);
  };
  constexpr int kAtOnce = 4, kStep = kAtOnce * Kernel::N;
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    note(Kernel::template step<kAtOnce>(values + i, stream, first + static_cast<std::uint64_t>(i), scale), i, kStep);
  for (; i < n; i += Kernel::N) {
    float some[Kernel::N];
    const auto count = std::min<std::int64_t>(Kernel::N, n - i);
    note(Kernel::template step<1>(some, stream, first + static_cast<std::uint64_t>(i), scale), i, count);
    std::copy_n(some, count, values + i);
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
