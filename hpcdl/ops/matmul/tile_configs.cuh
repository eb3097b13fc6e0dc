#pragma once
// The tiles that are compiled, one .cu file each (tile_*.cu).

#include "hpcdl/ops/matmul/tile_plan.cuh"

namespace hpcdl::cuda {

extern const TileConfig tile_128x128_in_turn, tile_128x256, tile_128x192, tile_128x64;

/// In the order of candidates.
inline const TileConfig* const kTiles[] = {&tile_128x128_in_turn, &tile_128x256, &tile_128x192, &tile_128x64};

}  // namespace hpcdl::cuda
