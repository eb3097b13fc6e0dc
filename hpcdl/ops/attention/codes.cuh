#pragma once
// 8-bit codes of a pool (ops/kv_write/pages.h) as numbers that products take, exactly (.cu files).

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::cuda {

/// One code as a float. f8: as an f16 with an exponent that is 8 too small.
__device__ inline float widen(std::int8_t x) { return static_cast<float>(x); }
__device__ inline float widen(f8_e4m3 x) {
  const unsigned sign = x.bits & 0x80u;
  return 256 * __half2float(__ushort_as_half(static_cast<unsigned short>(sign << 8 | (x.bits ^ sign) << 7)));
}

template <class T> using Two = std::conditional_t<dtype_of<T> == DType::bf16, __nv_bfloat162, __half2>;

template <class T> __device__ unsigned subtract_two(unsigned a, unsigned b) {
  const Two<T> r = __hsub2(reinterpret_cast<const Two<T>&>(a), reinterpret_cast<const Two<T>&>(b));
  return reinterpret_cast<const unsigned&>(r);
}
template <class T> __device__ unsigned multiply_two(unsigned a, unsigned b) {
  const Two<T> r = __hmul2(reinterpret_cast<const Two<T>&>(a), reinterpret_cast<const Two<T>&>(b));
  return reinterpret_cast<const unsigned&>(r);
}

/// The four codes of a word as pairs of T, bf16 or f16: .x of codes 0 and 1, .y of codes 2 and 3.
template <class T, class K> __device__ uint2 pairs_of_codes(unsigned word) {
  constexpr bool kBf16 = dtype_of<T> == DType::bf16;
  if constexpr (std::is_same_v<K, std::int8_t>) {
    const auto pair = [](unsigned halves) {
      // bf16: 128 + the lower 7 bits, less 128 or 256; f16: 1024 + (code + 128), less 1152.
      if constexpr (kBf16) return subtract_two<T>(halves & 0xff7fff7fu, halves & 0xff80ff80u);
      else return subtract_two<T>(halves, 0x64806480u);
    };
    constexpr unsigned kHigh = kBf16 ? 0x43434343u : 0x64646464u;
    if constexpr (!kBf16) word ^= 0x80808080u;
    return make_uint2(pair(__byte_perm(word, kHigh, 0x4140)), pair(__byte_perm(word, kHigh, 0x4342)));
  } else {
    // The bits of a float whose exponent is 120 (bf16) or 8 (f16) too small.
    constexpr int kShift = kBf16 ? 4 : 1;
    constexpr unsigned kPower = kBf16 ? 0x7b807b80u : 0x5c005c00u;
    const auto pair = [](unsigned halves) {
      const unsigned sign = halves & 0x80008000u;
      return multiply_two<T>(sign | (halves ^ sign) >> kShift, kPower);
    };
    return make_uint2(pair(__byte_perm(word, 0, 0x1404)), pair(__byte_perm(word, 0, 0x3424)));
  }
}

}  // namespace hpcdl::cuda
