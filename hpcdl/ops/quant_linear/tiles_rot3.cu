#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

/// Each group has a quarter of the low bits, of four runs that are 64 inputs apart. An entry of the table has two codes of
/// 3 bits. x is divided by 16 more than the rotation does (rotate_rows.h).
template <class T> struct Fragments<QuantFormat::rot3, T> {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 96, kStride = 112, kInputStride = 512 + 32;
  static constexpr int kScaleWords = 1, kTableEntries = 64;
  static constexpr bool kMinimum = false, kPaired = false, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first_of(int entry) { return entry & 7; }
  __device__ static int second_of(int entry) { return entry >> 3; }
  /// Codes, times 8, of bytes 0 and 1 as an entry.
  static constexpr unsigned kTwoCodes = kTableLine / 8 | kTableLine << 8;
  __device__ static unsigned moved(unsigned word, int left) { return left < 0 ? word >> -left : word << left; }

  __device__ static int first(int group, int product, int t) { return product * 64 + group * 16 + t * 4; }
  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const auto low = row.aligned<unsigned>(group * 16 + t * 4),
               high = row.aligned<unsigned>(64 + group % 2 * 16 + t * 4) >> (group / 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned codes = (moved(low, 3 - 2 * i) & 0x18181818u) | (moved(high, 5 - 2 * i) & 0x20202020u);
      to.pairs[0][i][0] = look_up(row, codes, kTwoCodes), to.pairs[0][i][1] = look_up(row, codes, kTwoCodes << 16);
    }
    to.scale[0] = reinterpret_cast<const float*>(row.scales)[0] * 16;
  }
};

template void run_tiles<QuantFormat::rot3, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::rot3, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::rot3>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
