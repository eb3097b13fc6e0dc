#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::q4_0, T> {
  static constexpr int kGroup = 32, kTogether = 1, kBytes = 144, kStride = 176, kInputStride = 512 + 32;
  static constexpr int kScaleWords = 0, kTableEntries = 0;
  static constexpr bool kMinimum = false, kPaired = false, kUnaligned = true;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + product * 16 + t * 4; }
  __device__ static void decode(Codes<1, 2>& to, const SegmentRow& row, int group, int t) {
    const unsigned q = row.word(group * 18 + 2 + t * 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned codes = q >> (4 * i) & 0x0f0f0f0fu;
      to.pairs[0][i][0] = Pairs<T>::template of_codes<8>(codes, kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::template of_codes<8>(codes, kHighTwo);
    }
    to.scale[0] = row.half(group * 18);
  }
};

template void run_tiles<QuantFormat::q4_0, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::q4_0, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::q4_0>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
