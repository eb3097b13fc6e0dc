#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::q8_0, T> {
  static constexpr int kGroup = 32, kTogether = 1, kBytes = 272, kStride = 304, kInputStride = 512 + 64;
  static constexpr int kScaleWords = 0, kTableEntries = 0;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = true;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + t * 8 + product * 4; }
  __device__ static void decode(Codes<1, 2>& to, const SegmentRow& row, int group, int t) {
    const uint2 q = row.words(group * 34 + 2 + t * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.pairs[0][i][0] = Pairs<T>::of_signed(i ? q.y : q.x, kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::of_signed(i ? q.y : q.x, kHighTwo);
    }
    to.scale[0] = row.half(group * 34);
  }
};

template void run_tiles<QuantFormat::q8_0, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::q8_0, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::q8_0>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
