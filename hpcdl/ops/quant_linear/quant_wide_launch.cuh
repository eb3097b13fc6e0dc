#pragma once
// Launches of quant_wide.cuh. Included by the file of each format (tiles_*.cu).

#include <atomic>

#include "hpcdl/ops/quant_linear/quant_wide.cuh"
#include "hpcdl/ops/quant_linear/quant_wide.h"

namespace hpcdl::cuda {

template <class F> void start_wide(Stream& s, TileOperands o, void* arranged, int splits) {
  static std::atomic<bool> granted[64] = {};  // per device
  if (auto& done = granted[s.device().index % 64]; !done) {
    check(cudaFuncSetAttribute(multiply_wide_tiles<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
          "quant_linear");
    done = true;
  }
  const unsigned columns = blocks_for(o.rows, F::kCols), items = blocks_for(o.w.n, F::Warp::kRows),
                 segments = blocks_for(o.w.k, kSegment);
  launch_overlapped(queue(s), true, arrange_rows<F>, {.grid = dim3(segments, columns * F::kCols), .block = dim3(64)},
                    "quant_linear.arrange", static_cast<std::byte*>(arranged), static_cast<const bf16*>(o.x),
                    o.x_stride, o.rows, static_cast<int>(o.w.k));
  o.x = arranged;
  const unsigned most = std::max(1u, static_cast<unsigned>(multiprocessors(s)) / columns);
  const auto divided = static_cast<unsigned>(splits);
  launch_overlapped(queue(s), true, multiply_wide_tiles<F>,
                    {.grid = dim3(splits > 1 ? items * divided : std::min(items, most), columns),
                     .block = dim3(kWideTeam * kWarp),
                     .shared = F::kSharedBytes,
                     .cluster = divided},
                    "quant_linear.wide", WideOperands{o, splits});
}

template <QuantFormat format> void run_wide(Stream& s, const TileOperands& o, void* arranged, int cols, int splits) {
  if (cols == 32) start_wide<WideTile<format, 32>>(s, o, arranged, splits);
  else if (cols == 64) start_wide<WideTile<format, 64>>(s, o, arranged, splits);
  else start_wide<WideTile<format, 128>>(s, o, arranged, splits);
}

}  // namespace hpcdl::cuda
