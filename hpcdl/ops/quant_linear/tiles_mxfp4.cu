#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::mxfp4, T> {
  static constexpr int kGroup = 32, kTogether = 1, kBytes = 128, kStride = 144, kInputStride = 512 + 64;
  static constexpr int kScaleWords = 2, kTableEntries = 256;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first_of(int entry) { return entry & 15; }
  __device__ static int second_of(int entry) { return entry >> 4; }
  __device__ static int first(int group, int product, int t) { return group * 32 + t * 8 + product * 4; }
  __device__ static void decode(Codes<1, 2>& to, const SegmentRow& row, int group, int t) {
    const auto q = row.aligned<unsigned>(group * 16 + t * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.pairs[0][i / 2][i % 2] = look_up(row, q, entry_in_byte(i));
    to.scale[0] = from_e8m0(row.scales[group]);
  }
};

template void run_tiles<QuantFormat::mxfp4, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::mxfp4, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::mxfp4>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
