#include "hpcdl/ops/quant_linear/four_bit_fragments.cuh"
#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::nf4_double, T> : FourBitFragments<T> {
  static constexpr int kScaleWords = 4;  // those of scales, after which a word has the codes of scales

  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    FourBitFragments<T>::pairs(to, row, group, t);
    const float outer = reinterpret_cast<const float*>(row.scales)[group];
    to.scale[0] = __fadd_rn(__fmul_rn(row.scale_values[row.scales[16 + group]], outer), row.scale_values[256]);
  }
};

template void run_tiles<QuantFormat::nf4_double, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::nf4_double, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::nf4_double>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
