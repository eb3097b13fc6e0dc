#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

/// E4M3 codes in bytes `select` of q, less 8 or 120 powers of two: their bits are those of a smaller exponent.
template <class T> struct E4m3Pairs;
template <> struct E4m3Pairs<bf16> {
  __device__ static unsigned of(unsigned q, unsigned select) {
    const unsigned v = __byte_perm(q, 0, select), bits = (v & 0x80008000u) | (v >> 4 & 0x07f007f0u);
    const __nv_bfloat162 r = __hmul2(reinterpret_cast<const __nv_bfloat162&>(bits), __float2bfloat162_rn(0x1p120f));
    return reinterpret_cast<const unsigned&>(r);
  }
};
template <> struct E4m3Pairs<f16> {
  __device__ static unsigned of(unsigned q, unsigned select) {
    const unsigned v = __byte_perm(q, 0, select), bits = (v & 0x80008000u) | (v >> 1 & 0x3f803f80u);
    const __half2 r = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(0x1p8f));
    return reinterpret_cast<const unsigned&>(r);
  }
};

template <class T> struct Fp8Fragments {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 256, kStride = 320, kInputStride = 512 + 16;
  static constexpr int kTableEntries = 0;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 64 + t * 16 + product * 4; }
  __device__ static void pairs(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const uint4 q = row.aligned<uint4>(group * 64 + t * 16);
    const unsigned words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to.pairs[0][i][0] = E4m3Pairs<T>::of(words[i], 0x1404);  // bytes above zeros
      to.pairs[0][i][1] = E4m3Pairs<T>::of(words[i], 0x3424);
    }
  }
};
template <class T> struct Fragments<QuantFormat::fp8, T> : Fp8Fragments<T> {
  static constexpr int kScaleWords = 0;

  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    Fp8Fragments<T>::pairs(to, row, group, t);
    to.scale[0] = row.of_row;
  }
};
template <class T> struct Fragments<QuantFormat::fp8_blocks, T> : Fp8Fragments<T> {
  static constexpr int kScaleWords = 2;

  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    Fp8Fragments<T>::pairs(to, row, group, t);
    to.scale[0] = reinterpret_cast<const float*>(row.scales)[group / 2];
  }
};

template void run_tiles<QuantFormat::fp8, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::fp8, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::fp8>(Stream&, const TileOperands&, void*, int, int);
template void run_tiles<QuantFormat::fp8_blocks, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::fp8_blocks, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::fp8_blocks>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
