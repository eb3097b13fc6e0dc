#pragma once
// Chooses the tile and the number of shares of k for a product: a model of time from rates measured on an H200.

#include "hpcdl/ops/matmul/tile_configs.cuh"

namespace hpcdl::cuda {

struct TileChoice {
  int tile = 0;    // index into kTiles
  int splits = 1;  // shares of k
  double microseconds = 0;
};

/// The time of g with kTiles[tile] and k in `splits` shares, on `processors` multiprocessors.
double predicted_microseconds(const Gemm& g, int tile, int splits, int processors);
/// The best number of shares for this tile, among those whose sums fit into `bytes`.
int best_splits(const Gemm& g, int tile, int processors, std::size_t bytes);
/// The time of cuBLASLt in the cases where it performs well.
double library_microseconds(const Gemm& g);
/// The best of all tiles.
TileChoice choose_tile(const Gemm& g, int processors, std::size_t bytes);

}  // namespace hpcdl::cuda
