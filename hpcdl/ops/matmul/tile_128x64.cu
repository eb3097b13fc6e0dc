#include "hpcdl/ops/matmul/tile_launch.cuh"

namespace hpcdl::cuda {

const TileConfig tile_128x64 = tile_config<TileShape<128, 64, 8, 1, false>>();

}  // namespace hpcdl::cuda
