#pragma once
// Dot<Isa, Compute>: multiply-add on vectors of 32-bit words. Included only by the .simd.cpp files of this folder.

#include <cstring>

#include "hpcdl/ops/matmul/kernel_set.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::gemm {

template <class Isa, Compute c> struct Dot {  // f32, and bf16 held as f32
  using V = simd::Vec<Isa>;
  using Acc = V;
  using Word = V;
  static constexpr int kLanes = V::N, kGroup = 1;
  static Acc zero() { return V(0.0f); }
  static Acc load_acc(const void* p) { return V::load(static_cast<const float*>(p)); }
  static void store_acc(void* p, Acc v) { v.store(static_cast<float*>(p)); }
  static void stream_acc(void* p, Acc v) { v.stream(static_cast<float*>(p)); }
  static Word load(const std::byte* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static Word broadcast(const std::byte* p) { return V(*reinterpret_cast<const float*>(p)); }
  static Acc mad(Acc acc, Word a, Word b) { return fma(a, b, acc); }
  static Word word(auto bits) { return std::bit_cast<Word>(bits); }
  /// The sum over all lanes.
  static void store_sum(void* p, Acc v) { *static_cast<float*>(p) = reduce_add(v); }
};

template <> struct Dot<simd::Scalar, Compute::int8> {
  using Acc = std::int32_t;
  using Word = std::uint32_t;
  static constexpr int kLanes = 1, kGroup = 4;
  static Acc zero() { return 0; }
  static Acc load_acc(const void* p) { return *static_cast<const Acc*>(p); }
  static void store_acc(void* p, Acc v) { *static_cast<Acc*>(p) = v; }
  static void stream_acc(void* p, Acc v) { store_acc(p, v); }
  static Word load(const std::byte* p) {
    Word w;
    std::memcpy(&w, p, sizeof w);
    return w;
  }
  static Word broadcast(const std::byte* p) { return load(p); }
  static Acc mad(Acc acc, Word a, Word b) {
    for (int i = 0; i < 32; i += 8) acc += static_cast<int>((a >> i) & 255u) * static_cast<std::int8_t>(b >> i);
    return acc;
  }
  static Word word(Word w) { return w; }
  static void store_sum(void* p, Acc v) { store_acc(p, v); }
};

#if defined(HPCDL_SIMD_AVX2)
template <> struct Dot<simd::Avx2, Compute::int8> {
  using Acc = __m256i;
  using Word = __m256i;
  static constexpr int kLanes = 8, kGroup = 4;
  static Acc zero() { return _mm256_setzero_si256(); }
  static Acc load_acc(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_acc(void* p, Acc v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static void stream_acc(void* p, Acc v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
  static Word load(const std::byte* p) { return load_acc(p); }
  static Word broadcast(const std::byte* p) {
    int w;
    std::memcpy(&w, p, sizeof w);
    return _mm256_set1_epi32(w);
  }
  // Even and odd bytes as 16-bit pairs: vpmaddubsw would saturate.
  static Acc mad(Acc acc, Word a, Word b) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
  }
  static Word word(Word w) { return w; }
  static void store_sum(void* p, Acc v) {
    std::int32_t t[8], sum = 0;
    store_acc(t, v);
    for (std::int32_t x : t) sum += x;
    std::memcpy(p, &sum, sizeof sum);
  }
};
#endif

#if defined(HPCDL_SIMD_AVX512)
template <> struct Dot<simd::Avx512, Compute::bf16> {
  using Acc = __m512;
  using Word = __m512i;
  static constexpr int kLanes = 16, kGroup = 2;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load_acc(const void* p) { return _mm512_loadu_ps(p); }
  static void store_acc(void* p, Acc v) { _mm512_storeu_ps(p, v); }
  static void stream_acc(void* p, Acc v) { _mm512_stream_ps(static_cast<float*>(p), v); }
  static Word load(const std::byte* p) { return _mm512_loadu_si512(p); }
  static Word broadcast(const std::byte* p) {
    int w;
    std::memcpy(&w, p, sizeof w);
    return _mm512_set1_epi32(w);
  }
  static Acc mad(Acc acc, Word a, Word b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static Word word(Word w) { return w; }
  static void store_sum(void* p, Acc v) { *static_cast<float*>(p) = _mm512_reduce_add_ps(v); }
};
template <> struct Dot<simd::Avx512, Compute::int8> {
  using Acc = __m512i;
  using Word = __m512i;
  static constexpr int kLanes = 16, kGroup = 4;
  static Acc zero() { return _mm512_setzero_si512(); }
  static Acc load_acc(const void* p) { return _mm512_loadu_si512(p); }
  static void store_acc(void* p, Acc v) { _mm512_storeu_si512(p, v); }
  static void stream_acc(void* p, Acc v) { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
  static Word load(const std::byte* p) { return _mm512_loadu_si512(p); }
  static Word broadcast(const std::byte* p) { return Dot<simd::Avx512, Compute::bf16>::broadcast(p); }
  static Acc mad(Acc acc, Word a, Word b) { return _mm512_dpbusd_epi32(acc, a, b); }
  static Word word(Word w) { return w; }
  static void store_sum(void* p, Acc v) { *static_cast<std::int32_t*>(p) = _mm512_reduce_add_epi32(v); }
};
#endif

}  // namespace hpcdl::gemm
