#include "hpcdl/ops/matmul/tile_launch.cuh"

namespace hpcdl::cuda {

const TileConfig tile_128x256 = tile_config<TileShape<128, 256, 3, 1, false>>();

}  // namespace hpcdl::cuda
