#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

/// A number of one byte.
__device__ inline float small_float(unsigned word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + static_cast<unsigned>(byte))) - 8388608.0f;
}

template <class T> struct Fragments<QuantFormat::q4_k, T> {
  static constexpr int kGroup = 32, kTogether = 2, kBytes = 144, kStride = 160, kInputStride = 512 + 64;
  static constexpr int kScaleWords = 0, kTableEntries = 0;
  static constexpr bool kMinimum = true, kPaired = true, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + t * 8 + product * 4; }
  /// Groups 2 pair and 2 pair + 1.
  __device__ static void decode(Codes<2, 2>& to, const SegmentRow& row, int pair, int t) {
    const uint4 head = row.aligned<uint4>(0);
    const float2 d = __half22float2(reinterpret_cast<const __half2&>(head.x));
    // Of groups 0 to 3, the low six bits; of the others, four bits of the last word and the two high ones of the first.
    const unsigned shift = static_cast<unsigned>(pair % 2) * 16;
    const unsigned a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    const bool low = pair < 2;
    const unsigned scales = low ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u),
                   minima = low ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.scale[i] = d.x * small_float(scales, i);
      to.minimum[i] = d.y * small_float(minima, i);
    }
    const uint2 q = row.aligned<uint2>(16 + pair * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int product = 0; product < 2; ++product) {
        const unsigned codes = (product ? q.y : q.x) >> (4 * i) & 0x0f0f0f0fu;
        to.pairs[i][product][0] = Pairs<T>::template of_codes<0>(codes, kLowTwo);
        to.pairs[i][product][1] = Pairs<T>::template of_codes<0>(codes, kHighTwo);
      }
  }
};

template void run_tiles<QuantFormat::q4_k, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::q4_k, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::q4_k>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
