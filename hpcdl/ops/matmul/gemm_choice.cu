#include "hpcdl/ops/matmul/gemm_choice.cuh"

#include <algorithm>

#include "hpcdl/ops/matmul/gemm_parts.h"

namespace hpcdl::cuda {
namespace {

// Per tile of kTiles: microseconds per 64 of k, and for storing its results.
constexpr double kPerBlock[] = {0.39, 0.77, 0.55, 0.24}, kPerTile[] = {2.6, 2.0, 1.6, 0.8};
static_assert(std::size(kPerBlock) == std::size(kTiles) && std::size(kPerTile) == std::size(kTiles));
constexpr double kLaunch = 3, kSharesBandwidth = 2.5e6;  // microseconds; bytes per microsecond
// cuBLASLt: operations per microsecond at large k; it stores results between products, and z takes some time.
constexpr double kLibraryRate = 720e6, kLibraryLaunch = 6, kLibraryDepth = 80, kLibraryZ = 1.4;

std::int64_t blocks_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

double predicted_microseconds(const Gemm& g, int tile, int splits, int processors) {
  const TileConfig& c = *kTiles[tile];
  const std::int64_t tiles = blocks_of(g.m, c.m) * blocks_of(g.n, c.n) * g.batch * splits,
                     k_blocks = blocks_of(blocks_of(g.k, 64), splits);
  const double per_block = static_cast<double>(blocks_of(tiles, processors)),
               main = static_cast<double>(k_blocks) * kPerBlock[tile];
  const double out = kPerTile[tile] * (1 + (g.out.z ? 2.0 : 0.0) + (g.out.residual ? 1.2 : 0.0) +
                                       (splits > 1 || g.out.dtype == DType::f32 ? 1.4 : 0.0));
  // A tile's results are stored while the next one's products are computed.
  double t = kLaunch +
             (c.in_turn ? (per_block - 1) * std::max(main, (main + out) / 2) + main + out : per_block * (main + out));
  if (splits > 1) t += kLaunch + 8.0 * static_cast<double>(g.batch * splits * g.m * padded(g.n)) / kSharesBandwidth;
  return t;
}

int best_splits(const Gemm& g, int tile, int processors, std::size_t bytes) {
  const std::int64_t k_blocks = blocks_of(g.k, 64);
  int best = 1;
  double least = predicted_microseconds(g, tile, 1, processors);
  for (int s = 2; s <= 32 && s * 4 <= k_blocks; ++s) {
    if (static_cast<std::size_t>(g.batch * s * g.m * padded(g.n)) * 4 > bytes) break;
    if (blocks_of(k_blocks, blocks_of(k_blocks, s)) != s) continue;  // a share would be empty
    const double t = predicted_microseconds(g, tile, s, processors);
    if (t < least) best = s, least = t;
  }
  return best;
}

double library_microseconds(const Gemm& g) {
  const double flops = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
                       static_cast<double>(g.k);
  return flops / kLibraryRate * (1 + kLibraryDepth / static_cast<double>(g.k)) * (g.out.z ? kLibraryZ : 1.0) +
         kLibraryLaunch;
}

TileChoice choose_tile(const Gemm& g, int processors, std::size_t bytes) {
  TileChoice best{.microseconds = 1e30};
  for (int tile = 0; tile < static_cast<int>(std::size(kTiles)); ++tile) {
    const int splits = best_splits(g, tile, processors, bytes);
    const double t = predicted_microseconds(g, tile, splits, processors);
    if (t < best.microseconds) best = {tile, splits, t};
  }
  return best;
}

}  // namespace hpcdl::cuda
