#pragma once
// Which tile of which expert a block computes (.cu files). How many tiles an expert has is known only on the GPU.

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/expert_mlp/mixture.cuh"

namespace hpcdl::cuda {

/// A tile of the results of one expert. Tiles of one expert are neighbours, and of these those of the same columns, which share its weights in L2.
struct TileOfExpert {
  int expert = -1, first = 0, count = 0;  // first: in its list of `count` choices
  int column = 0;

  /// Called by whole warps. `columns`: tiles of a row.
  __device__ static TileOfExpert find(const Choices& p, int index, int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int before = 0;
    for (int base = 0; base < p.mlps; base += kWarp) {
      const int n = base + lane < p.mlps ? p.count(base + lane) : 0, tiles = (n + rows - 1) / rows;
      int end = tiles * columns;
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const int other = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += other;
      }
      const unsigned beyond = __ballot_sync(~0u, before + end > index);
      if (beyond) {
        const int at = __ffs(static_cast<int>(beyond)) - 1, tiles_of_it = __shfl_sync(~0u, tiles, at),
                  in_it = index - before - __shfl_sync(~0u, end - tiles * columns, at);
        return {base + at, in_it % tiles_of_it * rows, __shfl_sync(~0u, n, at), in_it / tiles_of_it};
      }
      before += __shfl_sync(~0u, end, kWarp - 1);
    }
    return {};
  }
};

}  // namespace hpcdl::cuda
