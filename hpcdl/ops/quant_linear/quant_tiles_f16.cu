#define HPCDL_QUANT_TILES_OF f16
#include "hpcdl/ops/quant_linear/quant_tiles_launch.cuh"
