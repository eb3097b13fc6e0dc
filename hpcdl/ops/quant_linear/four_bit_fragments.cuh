#pragma once
// Codes of NF4 and FP4 as operands of tensor cores: the first of two inputs is in the high bits of a byte.

#include "hpcdl/ops/quant_linear/quant_fragments.cuh"

namespace hpcdl::cuda {

template <class T> struct FourBitFragments {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 128, kStride = 160, kInputStride = 512 + 16;
  static constexpr int kTableEntries = 256;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first_of(int entry) { return entry >> 4; }
  __device__ static int second_of(int entry) { return entry & 15; }

  __device__ static int first(int group, int product, int t) { return group * 64 + t * 16 + product * 4; }
  __device__ static void pairs(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const uint2 two = row.aligned<uint2>(group * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) to.pairs[0][i / 2][i % 2] = look_up(row, i < 4 ? two.x : two.y, entry_in_byte(i % 4));
  }
};

}  // namespace hpcdl::cuda
