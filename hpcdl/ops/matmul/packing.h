#pragma once
// Reads matrices as vectors of 32-bit words (see kernel_set.h), with conversion. One class per instruction set and kind
// of product. Included only by the .simd.cpp files of this folder.
//
//   along_k(p, n)        `lanes` words along k from n valid elements at p; zeros beyond
//   across(p, ld, kn, n) one word of k for n valid columns: element (j, k) at p[j + k * ld], kn of them valid
//   transpose(r)         lanes x lanes words, in place

#include "hpcdl/ops/matmul/dot.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::gemm {

template <class Isa> struct Registers;

template <> struct Registers<simd::Scalar> {
  using Reg = std::uint32_t;
  static Reg zero() { return 0; }
  static void store(std::uint32_t* p, Reg r, int) { *p = r; }
  static void transpose(Reg*) {}
  static Reg from_float(simd::Vec<simd::Scalar> v) { return std::bit_cast<Reg>(v.v); }
};

#if defined(HPCDL_SIMD_AVX2)
template <> struct Registers<simd::Avx2> {
  using Reg = __m256i;
  static Reg zero() { return _mm256_setzero_si256(); }
  static void store(std::uint32_t* p, Reg r, int n) {
    simd::touch<simd::Avx2>(p, n);
    if (n == 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), r);
    else _mm256_maskstore_epi32(reinterpret_cast<int*>(p), simd::Vec<simd::Avx2>::tail(n), r);
  }
  static Reg from_float(simd::Vec<simd::Avx2> v) { return _mm256_castps_si256(v.v); }
  static void transpose(Reg* r) {
    __m256 t[8], s[8];
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(_mm256_castsi256_ps(r[2 * i]), _mm256_castsi256_ps(r[2 * i + 1]));
      t[2 * i + 1] = _mm256_unpackhi_ps(_mm256_castsi256_ps(r[2 * i]), _mm256_castsi256_ps(r[2 * i + 1]));
    }
    for (int i = 0; i < 8; i += 4) {
      s[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      s[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      s[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      s[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_castps_si256(_mm256_permute2f128_ps(s[i], s[i + 4], 0x20));
      r[i + 4] = _mm256_castps_si256(_mm256_permute2f128_ps(s[i], s[i + 4], 0x31));
    }
  }
};
#endif

#if defined(HPCDL_SIMD_AVX512)
template <> struct Registers<simd::Avx512> {
  using Reg = __m512i;
  static Reg zero() { return _mm512_setzero_si512(); }
  static void store(std::uint32_t* p, Reg r, int n) {
    simd::touch<simd::Avx512>(p, n);
    _mm512_mask_storeu_epi32(p, simd::Vec<simd::Avx512>::tail(n), r);
  }
  static void store_halves(std::uint32_t* low, std::uint32_t* high, Reg r) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm512_castsi512_si256(r));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm512_extracti64x4_epi64(r, 1));
  }
  static Reg from_float(simd::Vec<simd::Avx512> v) { return _mm512_castps_si512(v.v); }
  static void transpose(Reg* r) {
    Reg t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
      for (int h = 0; h < 2; ++h) {
        r[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + h + 2]);
        r[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + h + 2]);
      }
    for (int i = 0; i < 4; ++i)
      for (int h = 0; h < 2; ++h) {  // r[8h + i]: 4 rows x 4 column blocks
        t[8 * h + i] = _mm512_shuffle_i32x4(r[8 * h + i], r[8 * h + 4 + i], 0x88);
        t[8 * h + 4 + i] = _mm512_shuffle_i32x4(r[8 * h + i], r[8 * h + 4 + i], 0xdd);
      }
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
      r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    }
  }
};
#endif

/// One element per word: f32, or bf16 or f16 held as f32 (then sources of another type are rounded).
template <class Isa, Compute c> struct Words : Registers<Isa> {
  using typename Registers<Isa>::Reg;
  using V = simd::Vec<Isa>;
  template <class T> static Reg along_k(const T* p, int n) {
    V v = n >= V::N ? V::load(p) : n > 0 ? V::load(p, n) : V(0.0f);
    using Rounded = std::conditional_t<c == Compute::bf16, bf16, std::conditional_t<c == Compute::f16, f16, T>>;
    if constexpr (!std::is_same_v<T, Rounded>) {
      Rounded t[V::N];
      v.store(t);
      v = V::load(t);
    }
    return Registers<Isa>::from_float(v);
  }
  template <class T> static Reg across(const T* p, std::int64_t, int, int n) { return along_k(p, n); }
};

template <> struct Words<simd::Scalar, Compute::int8> : Registers<simd::Scalar> {
  static Reg along_k(const std::uint8_t* p, int n) { return across(p, 1, n, 1); }
  static Reg across(const std::uint8_t* p, std::int64_t ld, int kn, int n) {
    Reg w = 0;
    for (int i = 0; i < 4; ++i)
      if (i < kn && n > 0) w |= Reg{p[i * ld]} << (8 * i);
    return w;
  }
};

#if defined(HPCDL_SIMD_AVX2)
template <> struct Words<simd::Avx2, Compute::int8> : Registers<simd::Avx2> {
  static Reg along_k(const std::uint8_t* p, int n) {
    alignas(32) std::uint8_t t[32] = {};
    std::memcpy(t, p, static_cast<unsigned>(n < 0 ? 0 : n < 32 ? n : 32));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(t));
  }
  static Reg across(const std::uint8_t* p, std::int64_t ld, int kn, int n) {
    Reg w = zero();
    for (int i = 0; i < 4 && i < kn; ++i) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, p + i * ld, static_cast<unsigned>(n < 0 ? 0 : n < 8 ? n : 8));
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
      w = _mm256_or_si256(w, _mm256_sll_epi32(wide, _mm_cvtsi32_si128(8 * i)));
    }
    return w;
  }
};
#endif

#if defined(HPCDL_SIMD_AVX512)
template <> struct Words<simd::Avx512, Compute::bf16> : Registers<simd::Avx512> {
  using V = simd::Vec<simd::Avx512>;
  static __mmask32 mask(int n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1u; }
  static int clamp16(int n) { return n < 0 ? 0 : n < 16 ? n : 16; }
  static Reg along_k(const bf16* p, int n) {
    simd::touch<simd::Avx512>(p, n < 32 ? n : 32);
    return _mm512_maskz_loadu_epi16(mask(n), p);
  }
  template <class T> static Reg along_k(const T* p, int n) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(V::load(p + 16, clamp16(n - 16)).v, V::load(p, clamp16(n)).v));
  }
  static __m256i half(const bf16* p, int n) {
    simd::touch<simd::Avx512>(p, n);
    return _mm256_maskz_loadu_epi16(V::tail(n), p);
  }
  template <class T> static __m256i half(const T* p, int n) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(V::load(p, n).v));
  }
  template <class T> static Reg across(const T* p, std::int64_t ld, int kn, int n) {
    const int cols = clamp16(n);
    const __m512i even = _mm512_cvtepu16_epi32(half(p, cols));
    if (kn < 2) return even;
    return _mm512_or_si512(even, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half(p + ld, cols)), 16));
  }
};
template <> struct Words<simd::Avx512, Compute::int8> : Registers<simd::Avx512> {
  static Reg along_k(const std::uint8_t* p, int n) {
    simd::touch<simd::Avx512>(p, n < 64 ? n : 64);
    return _mm512_maskz_loadu_epi8(n >= 64 ? ~0ull : n <= 0 ? 0ull : (1ull << n) - 1, p);
  }
  static Reg across(const std::uint8_t* p, std::int64_t ld, int kn, int n) {
    const auto m = static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
    Reg w = zero();
    for (int i = 0; i < 4 && i < kn; ++i) {
      simd::touch<simd::Avx512>(p + i * ld, n < 16 ? n : 16);
      const Reg wide = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, p + i * ld));
      w = _mm512_or_si512(w, _mm512_sll_epi32(wide, _mm_cvtsi32_si128(8 * i)));
    }
    return w;
  }
};
#endif

/// Rows of the source run along panels of half a vector, an even number of panels: each vector fills a row of two
/// panels.
template <class D, class W, class T> void pack_across_pairs(const PackArgs& p) {
  constexpr int kWidth = D::kLanes / 2, kTogether = 8, kAhead = 24;
  const auto* src = static_cast<const T*>(p.src);
  for (int first = 0; first < p.panels; first += kTogether) {
    const int last = first + kTogether < p.panels ? first + kTogether : p.panels;
    std::uint32_t* dst = p.dst + first * p.panel_stride;
    for (std::int64_t k = 0; k < p.k; k += D::kGroup, dst += kWidth) {
      const T* row = src + k * p.ld + first * kWidth;
      const int kn = static_cast<int>(p.k - k < D::kGroup ? p.k - k : D::kGroup);
      for (int c = 0; c < (last - first) * kWidth; c += static_cast<int>(64 / sizeof(T)))
        for (int g = 0; g < D::kGroup; ++g) __builtin_prefetch(row + (kAhead * D::kGroup + g) * p.ld + c, 0, 3);
      for (int j = 0; j < last - first; j += 2)
        W::store_halves(dst + j * p.panel_stride, dst + (j + 1) * p.panel_stride,
                        W::across(row + j * kWidth, p.ld, kn, D::kLanes));
    }
  }
}

/// One panel of NV whole vectors whose rows are contiguous in the source: only loads and stores.
template <class D, class W, int NV, class T> void pack_across_whole(const PackArgs& p) {
  constexpr int kLanes = D::kLanes, kGroup = D::kGroup, kAhead = 8;
  const std::int64_t ld = p.ld, words = p.k / kGroup;
  const T* row = static_cast<const T*>(p.src);
  std::uint32_t* dst = p.dst;
  for (std::int64_t k = 0; k < words; ++k, row += kGroup * ld, dst += NV * kLanes) {
    for (int g = 0; g < kGroup; ++g)
      for (int c = 0; c < NV * kLanes; c += static_cast<int>(64 / sizeof(T)))
        __builtin_prefetch(row + (kAhead * kGroup + g) * ld + c, 0, 3);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) W::store(dst + v * kLanes, W::across(row + v * kLanes, ld, kGroup, kLanes), kLanes);
  }
}

/// Rows of the source run along the panels. Several narrow panels advance together, so that whole lines are used while
/// they are in L1, for any row stride.
template <class D, class W, class T> void pack_across(const PackArgs& p) {
  if constexpr (requires { W::store_halves(nullptr, nullptr, W::zero()); })
    if (p.width * 2 == D::kLanes && p.panels > 1) {
      PackArgs pairs = p;
      pairs.panels = p.panels / 2 * 2;
      pack_across_pairs<D, W, T>(pairs);
      if (pairs.panels == p.panels) return;
      pairs.dst += pairs.panels * p.panel_stride;
      pairs.src = static_cast<const T*>(p.src) + pairs.panels * p.width;
      pairs.panels = 1;
      return pack_across<D, W, T>(pairs);
    }
  constexpr int kLanes = D::kLanes, kGroup = D::kGroup, kAhead = 8;
  if (p.panels == 1 && p.cols == p.width && p.k % kGroup == 0) {
    if (p.width == 3 * kLanes) return pack_across_whole<D, W, 3, T>(p);
    if (p.width == 2 * kLanes) return pack_across_whole<D, W, 2, T>(p);
  }
  const auto* src = static_cast<const T*>(p.src);
  const std::int64_t words = (p.k + kGroup - 1) / kGroup;
  const int together = p.width < 64 ? 64 / p.width : 1;
  for (int first = 0; first < p.panels; first += together) {
    const int last = first + together < p.panels ? first + together : p.panels;
    for (std::int64_t k = 0; k < words; ++k) {
      const T* row = src + k * kGroup * p.ld;
      const int kn = static_cast<int>(p.k - k * kGroup < kGroup ? p.k - k * kGroup : kGroup);
      for (int c = first * p.width; c < last * p.width; c += static_cast<int>(64 / sizeof(T)))
        for (int g = 0; g < kGroup; ++g) __builtin_prefetch(row + (kAhead * kGroup + g) * p.ld + c, 0, 3);
      for (int panel = first; panel < last; ++panel) {
        std::uint32_t* dst = p.dst + panel * p.panel_stride + k * p.width;
        for (int j = 0; j < p.width; j += kLanes) {
          const int width = p.width - j < kLanes ? p.width - j : kLanes, cols = p.cols - j < width ? p.cols - j : width;
          W::store(dst + j, cols > 0 ? W::across(row + panel * p.width + j, p.ld, kn, cols) : W::zero(), width);
        }
      }
    }
  }
}

/// Rows of the source run along k: square blocks are transposed in registers.
template <class D, class W, class T> void pack_dense(const PackArgs& p) {
  constexpr int kLanes = D::kLanes, kGroup = D::kGroup, kFull = kLanes * kGroup;
  const auto* src = static_cast<const T*>(p.src);
  const std::int64_t words = (p.k + kGroup - 1) / kGroup;
  const auto upto = [](std::int64_t n, int most) { return static_cast<int>(n < most ? n : most); };
  for (int panel = 0; panel < p.panels; ++panel)
    for (int j = 0; j < p.width; j += kLanes)
      for (std::int64_t k = 0; k < words; k += kLanes) {
        const T* at = src + (panel * p.width + j) * p.ld + k * kGroup;
        typename W::Reg r[kLanes];
        if (p.cols - j >= kLanes && p.k - k * kGroup >= kFull)
          for (int i = 0; i < kLanes; ++i) r[i] = W::along_k(at + i * p.ld, kFull);
        else
          for (int i = 0; i < kLanes; ++i)
            r[i] = j + i < p.cols ? W::along_k(at + i * p.ld, upto(p.k - k * kGroup, kFull)) : W::zero();
        W::transpose(r);
        const int width = upto(p.width - j, kLanes), rows = upto(words - k, kLanes);
        std::uint32_t* dst = p.dst + panel * p.panel_stride + k * p.width + j;
        if (width == kLanes && rows == kLanes)
          for (int i = 0; i < kLanes; ++i) W::store(dst + i * p.width, r[i], kLanes);
        else
          for (int i = 0; i < rows; ++i) W::store(dst + i * p.width, r[i], width);
      }
}

template <class D, class W, class T> void pack_typed(const PackArgs& p) {
  if (p.k_dense) pack_dense<D, W, T>(p);
  else pack_across<D, W, T>(p);
}

}  // namespace hpcdl::gemm
