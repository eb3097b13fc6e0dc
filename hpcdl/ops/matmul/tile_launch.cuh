#pragma once
// From a Gemm to launches of tile_gemm (tile_kernel.h). Each .cu file instantiates one tile shape for all layouts and
// types.

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/ops/matmul/tile_configs.cuh"
#include "hpcdl/ops/matmul/tile_kernel.cuh"

namespace hpcdl::cuda {

template <class T, class S, Major kA, Major kB>
void launch_tiles(Stream& s, const TileMaps& maps, const TileProblem& p) {
  constexpr int kBytes = TileMemory<S>::kBytes;
  allow_shared<tile_gemm<T, S, kA, kB>>(s, kBytes);
  const int clusters = multiprocessors(s) / S::kCluster;
  launch_overlapped(queue(s), false, tile_gemm<T, S, kA, kB>,
                    {.grid = static_cast<unsigned>((p.tiles < clusters ? p.tiles : clusters) * S::kCluster),
                     .block = S::kThreads,
                     .shared = kBytes,
                     .cluster = S::kCluster},
                    "matmul", maps, p);
}

template <class S>
void launch_layout(Stream& s, const TileMaps& maps, const TileProblem& p, DType type, bool a_along_m, bool b_along_n) {
  const auto with = [&]<class T>() {
    if (a_along_m && b_along_n) launch_tiles<T, S, Major::mn, Major::mn>(s, maps, p);
    else if (a_along_m) launch_tiles<T, S, Major::mn, Major::k>(s, maps, p);
    else if (b_along_n) launch_tiles<T, S, Major::k, Major::mn>(s, maps, p);
    else launch_tiles<T, S, Major::k, Major::k>(s, maps, p);
  };
  if (type == DType::f16) with.template operator()<f16>();
  else with.template operator()<bf16>();
}

template <class S> constexpr TileConfig tile_config() {
  return {S::kM, S::kN, S::kStages, S::kCluster, S::kInTurn, launch_layout<S>};
}

}  // namespace hpcdl::cuda
