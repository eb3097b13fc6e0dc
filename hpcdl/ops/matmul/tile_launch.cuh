#pragma once
// From a Gemm to launches of tile_gemm (tile_kernel.h). Each .cu file instantiates one tile shape for all layouts and
// types.

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/ops/matmul/tile_configs.cuh"
#include "hpcdl/ops/matmul/tile_kernel.cuh"

namespace hpcdl::cuda {

template <class T, class S, Major kA, Major kB>
void launch_tiles(Stream& s, const TileMaps& maps, const TileProblem& p) {
  constexpr int kBytes = TileMemory<S>::kBytes;
  allow_shared<tile_gemm<T, S, kA, kB>>(s, kBytes);
  const int clusters = multiprocessors(s) / S::kCluster;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = S::kCluster, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((p.tiles < clusters ? p.tiles : clusters) * S::kCluster));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = queue(s);
  config.attrs = &cluster, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, tile_gemm<T, S, kA, kB>, maps, p), "matmul");
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
