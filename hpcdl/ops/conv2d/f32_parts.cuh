#pragma once
// f32 convolutions by 16-bit products on Hopper's tensor cores. Each number is split into three bf16 of eight bits,
// each rounded to nearest: together they equal the number. Of the nine products of two numbers six are computed, those
// of parts i and j with i + j <= 2; each of the others is at most 2^-24 of a product. An infinity gives NaN.
//
// Operands are written in parts before the product: for each pixel (or each tap of a filter), blocks of 64 channels,
// each with 64 first parts, 64 second, 64 third, and zeros after the last channel.

#include <span>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/conv2d/implicit_gemm.h"
#if defined(__CUDACC__)
#include "hpcdl/cuda/lanes.cuh"
#endif

namespace hpcdl::cuda {

inline constexpr int kParts = 3, kPartChannels = 64, kPartBlock = kParts * kPartChannels;

inline std::int64_t part_blocks(std::int64_t channels) { return (channels + kPartChannels - 1) / kPartChannels; }
inline std::int64_t part_bytes(std::int64_t rows, std::int64_t channels) {
  return rows * part_blocks(channels) * kPartBlock * 2;
}

/// The six products, smallest first and the product of first parts last: which part of A and of B.
inline constexpr int kPartProducts = 6;
HPCDL_HOST_DEVICE constexpr int part_of_a(int product) {
  constexpr int kOf[] = {2, 0, 1, 1, 0, 0};
  return kOf[product];
}
HPCDL_HOST_DEVICE constexpr int part_of_b(int product) {
  constexpr int kOf[] = {0, 2, 1, 0, 1, 0};
  return kOf[product];
}

#if defined(__CUDACC__)

/// The nearest bf16 as a float. A value that would round to infinity is truncated.
__device__ inline float nearest_part(float v) {
  const unsigned bits = __float_as_uint(v);
  const unsigned up = (bits & 0x7fffffffu) < 0x7f7f8000u ? 0x7fffu + (bits >> 16 & 1) : 0;
  return __uint_as_float((bits + up) & 0xffff0000u);
}
/// Two neighbouring elements in parts, one word per part.
__device__ inline void pair_in_parts(float low, float high, unsigned (&word)[kParts]) {
  const float l = nearest_part(low), h = nearest_part(high);
  word[0] = __float_as_uint(l) >> 16 | __float_as_uint(h);
  Lanes<2> rest;
  rest.v[0] = low - l, rest.v[1] = high - h;
#pragma unroll
  for (int part = 1; part < kParts; ++part) {  // too small to round to infinity
    const auto rounded = pack<bf16>(rest);
    word[part] = rounded.w[0];
    rest = rest - widen(rounded);
  }
}

#endif

/// Computes passes of one convolution by such products, for any addresses; false if one of them is not suitable: GPUs
/// other than Hopper, other types, few channels, little work. Operands that several passes read are written once.
bool conv_in_parts(Stream& s, std::span<const Conv> passes);

// Each in its own file: c's product from operands in parts, `x` (or dy) and `w`, which represent c's images.
struct PartsOperands {
  const void *x, *w, *dy;
};
/// Forward or data.
void tiles_in_parts(Stream& s, const Conv& c, const PartsOperands& parts);
void tile_weight_in_parts(Stream& s, const Conv& c, const PartsOperands& parts);

}  // namespace hpcdl::cuda
