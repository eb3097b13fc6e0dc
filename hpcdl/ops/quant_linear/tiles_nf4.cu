#include "hpcdl/ops/quant_linear/four_bit_fragments.cuh"
#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
#include "hpcdl/ops/quant_linear/quant_wide_launch.cuh"

namespace hpcdl::cuda {

template <class T> struct Fragments<QuantFormat::nf4, T> : FourBitFragments<T> {
  static constexpr int kScaleWords = 4;

  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    FourBitFragments<T>::pairs(to, row, group, t);
    to.scale[0] = reinterpret_cast<const float*>(row.scales)[group];
  }
};

template void run_tiles<QuantFormat::nf4, bf16>(Stream&, const TileOperands&, int);
template void run_tiles<QuantFormat::nf4, f16>(Stream&, const TileOperands&, int);
template void run_wide<QuantFormat::nf4>(Stream&, const TileOperands&, void*, int, int);

}  // namespace hpcdl::cuda
