#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::q6_k, T> {
  static constexpr int kGroup = 16, kTogether = 4, kBytes = 210, kStride = 240, kInputStride = 512 + 32;
  static constexpr int kScaleWords = 0, kTableEntries = 0;
  static constexpr bool kMinimum = false, kPaired = false, kUnaligned = true;
  static constexpr int kProducts = 1;

  /// Of the groups of 16, those that are decoded at once are 32 inputs apart: 4 (index / 2) + ... of a half.
  __device__ static int first(int group, int, int t) {
    const int set = group / 4, quarter = group % 4;
    return set / 2 * 128 + quarter * 32 + set % 2 * 16 + t * 4;
  }
  __device__ static void decode(Codes<4, 1>& to, const SegmentRow& row, int set, int t) {
    const int half = set / 2, part = set % 2;
    const unsigned low0 = row.word(half * 64 + part * 16 + t * 4), low1 = row.word(half * 64 + 32 + part * 16 + t * 4),
                   high = row.word(128 + half * 32 + part * 16 + t * 4);
    const float d = row.half(208);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned low = (j % 2 ? low1 : low0) >> (j / 2 * 4) & 0x0f0f0f0fu,
                     two = j < 2 ? high << (4 - 2 * j) : high >> (2 * j - 4);
      const unsigned codes = low | (two & 0x30303030u);
      to.pairs[j][0][0] = Pairs<T>::template of_codes<32>(codes, kLowTwo);
      to.pairs[j][0][1] = Pairs<T>::template of_codes<32>(codes, kHighTwo);
      to.scale[j] = d * row.signed_byte(192 + half * 8 + 2 * j + part);
    }
  }
};

template void run_tiles<QuantFormat::q6_k, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::q6_k, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::q6_k>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
