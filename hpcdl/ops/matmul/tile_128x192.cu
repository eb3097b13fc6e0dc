#include "hpcdl/ops/matmul/tile_launch.cuh"

namespace hpcdl::cuda {

const TileConfig tile_128x192 = tile_config<TileShape<128, 192, 4, 1, false>>();

}  // namespace hpcdl::cuda
