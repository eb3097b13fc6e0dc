#pragma once
// Shared code of the kernels for images with few channels (few_channels.h).

#include "hpcdl/ops/conv2d/f32_parts.cuh"
#include "hpcdl/ops/conv2d/few_channels.h"
#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {

/// How operands of type T are multiplied: unchanged, or f32 in bf16 parts.
template <class T> struct Way {
  using Element = T;
  static constexpr int kOperandParts = 1, kProducts = 1;
  __device__ static constexpr int of_a(int) { return 0; }
  __device__ static constexpr int of_b(int) { return 0; }
  /// The bits of a part of v.
  __device__ static unsigned bits(float v, int) { return narrow<T>(v).bits; }
};
template <> struct Way<float> {
  using Element = bf16;
  static constexpr int kOperandParts = kParts, kProducts = kPartProducts;
  __device__ static constexpr int of_a(int product) { return part_of_a(product); }
  __device__ static constexpr int of_b(int product) { return part_of_b(product); }
  __device__ static unsigned bits(float v, int part) {
    unsigned word[kParts];
    pair_in_parts(v, 0.0f, word);
    return part == 0 ? word[0] : part == 1 ? word[1] : word[2];
  }
};

/// Loads the rows for the tile of image `image` that begins with row `row0` of y, by all threads; for f32 all words of
/// one part come before those of the next.
template <class T, int kThreads>
__device__ void bring_rows(const ImageRows& r, const void* images, int image, int row0, unsigned* to) {
  using Stored = std::conditional_t<sizeof(T) == 2, unsigned short, float>;
  const auto* from = static_cast<const Stored*>(images) + std::int64_t{image} * r.height * r.elements;
  const int words = r.all_words();
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) {
    const ImageRows::Place place = r.place(i);
    const int row = place.row + row0 * r.stride, at = row * r.elements + place.element;
    const Stored low = r.inside(row, place.element) ? from[at] : Stored{},
                 high = r.inside(row, place.element + 1) ? from[at + 1] : Stored{};
    if constexpr (sizeof(T) == 2) {
      to[i] = low | static_cast<unsigned>(high) << 16;
    } else {
      unsigned word[kParts];
      pair_in_parts(low, high, word);
#pragma unroll
      for (int part = 0; part < kParts; ++part) to[part * words + i] = word[part];
    }
  }
}

/// Channels that take less than 16 bytes.
inline bool of_few_channels(const Conv& c) {
  const auto& g = c.shape;
  return g.i < 16 / dtype_bytes(c.compute) && g.dilation == 1 && g.o % 8 == 0 && g.pixels() > 0 &&
         g.h * g.w * g.i < 1 << 30;
}

}  // namespace hpcdl::cuda
