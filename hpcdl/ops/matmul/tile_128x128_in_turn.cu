#include "hpcdl/ops/matmul/tile_launch.cuh"

namespace hpcdl::cuda {

const TileConfig tile_128x128_in_turn = tile_config<TileShape<128, 128, 5, 2, true>>();

}  // namespace hpcdl::cuda
