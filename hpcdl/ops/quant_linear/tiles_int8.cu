#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::int8, T> {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 256, kStride = 320, kInputStride = 512 + 16;
  static constexpr int kScaleWords = 0, kTableEntries = 0;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 64 + t * 16 + product * 4; }
  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const uint4 q = row.aligned<uint4>(group * 64 + t * 16);
    const unsigned words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to.pairs[0][i][0] = Pairs<T>::of_signed(words[i], kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::of_signed(words[i], kHighTwo);
    }
    to.scale[0] = row.of_row;
  }
};

template void run_tiles<QuantFormat::int8, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::int8, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::int8>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
