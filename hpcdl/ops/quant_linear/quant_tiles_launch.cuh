#pragma once
// From the shape of a product to a launch of its tiles. Included by the file of each format (tiles_*.cu), which has its
// decoder and compiles its kernels.

#include <atomic>
#include <cmath>
#include <type_traits>

#include "hpcdl/ops/quant_linear/quant_tiles.cuh"

namespace hpcdl::cuda {

template <class... S> struct ShapeList {
  /// f.operator()<S>() for each, in order.
  template <class F> static void each(F&& f) { (f.template operator()<S>(), ...); }
};
/// Codes of 8 bits leave less shared memory for x and for warps.
template <bool kEightBits>
using TileShapes = ShapeList<
    TileShape<8, 1, 2, 8, 1>, std::conditional_t<kEightBits, TileShape<8, 8, 2, 6, 1>, TileShape<8, 8, 2, 8, 1>>,
    std::conditional_t<kEightBits, TileShape<16, 16, 8, 2, 1>, TileShape<16, 16, 4, 4, 1>>,
    std::conditional_t<kEightBits, TileShape<32, 32, 8, 1, 1>, TileShape<32, 32, 8, 2, 1>>, TileShape<64, 64, 8, 1, 1>,
    std::conditional_t<kEightBits, TileShape<64, 64, 4, 1, 2>, TileShape<64, 64, 8, 1, 2>>>;

template <class F> void start_tiles(Stream& s, const TileOperands& o, int processors) {
  static std::atomic<bool> granted[64] = {};  // per device
  if (auto& done = granted[s.device().index % 64]; !done) {
    check(cudaFuncSetAttribute(multiply_tiles<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
          "quant_linear");
    done = true;
  }
  const unsigned columns = blocks_for(o.rows, F::kCols),
                 most = std::max(1u, static_cast<unsigned>(processors) / columns);
  launch_overlapped(queue(s), has_clusters(s), multiply_tiles<F>,
                    {.grid = dim3(std::min(blocks_for(o.w.n, F::kRows), most), columns),
                     .block = dim3(F::kThreads),
                     .shared = F::kSharedBytes},
                    "quant_linear.tiles", o);
}

/// The time that the busiest multiprocessor needs, in units of a decoded weight. H200, us, NF4, 28672 x 8192: blocks of 8
/// columns 57, 16: 72, 32: 93, 64: 168, and 132 if each warp has 32 rows of W.
template <class S> double tile_time(const TileOperands& o, int processors) {
  const unsigned columns = blocks_for(o.rows, S::kCols), blocks = blocks_for(o.w.n, S::kRows) * columns;
  const double of_column = S::kCols == 64 && S::kTiles == 1 ? 0.033 : 0.022;
  return std::ceil(static_cast<double>(blocks) / processors) * S::kRows * (1 + of_column * S::kCols);
}

/// Shapes of one row are for one row alone.
template <class Shapes> int least_time(const TileOperands& o, int processors) {
  int best = -1, i = 0;
  double least = 0;
  Shapes::each([&]<class S>() {
    const double time = tile_time<S>(o, processors);
    if ((S::kInputs == 1) == (o.rows == 1) && (best < 0 || time < least)) least = time, best = i;
    ++i;
  });
  return best;
}

template <QuantFormat format, class T> void run_tiles(Stream& s, const TileOperands& o, int shape) {
  using Shapes = TileShapes<quant_format_info(format).bits == 8>;
  const int processors = multiprocessors(s);
  int left = shape >= 0 ? shape : least_time<Shapes>(o, processors);
  Shapes::each([&]<class S>() {
    if (left-- == 0) start_tiles<QuantTile<format, T, S>>(s, o, processors);
  });
}

}  // namespace hpcdl::cuda
