#include "hpcdl/ops/matmul/row_invariant_gemm.h"

#include <algorithm>

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/matmul/gemm_choice.cuh"
#include "hpcdl/ops/matmul/gemm_parts.h"
#include "hpcdl/ops/matmul/plain_gemm.cuh"

// Every tile adds the products of a share of k in the same order, whatever its shape: the tile may depend on the number
// of rows. In how many shares k is divided depends on n and k alone.

namespace hpcdl::cuda {
namespace {

std::int64_t blocks_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// As many as let a few rows use a large GPU, and read the weights at most of its bandwidth. A share has at least 256 of k.
int shares_of_k(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kProcessors = 128, kLeastBlocks = 4;
  const auto k_blocks = blocks_of(k, 64);
  auto shares =
      std::clamp<std::int64_t>(kProcessors / blocks_of(n, 64), 1, std::max<std::int64_t>(1, k_blocks / kLeastBlocks));
  while (blocks_of(k_blocks, blocks_of(k_blocks, shares)) != shares) --shares;  // none is empty
  return static_cast<int>(shares);
}

void in_tiles(Stream& s, const Gemm& g, int shares) {
  const int processors = multiprocessors(s);
  const TileConfig* best = nullptr;
  double least = 0;
  for (int tile = 0; tile < static_cast<int>(std::size(kTiles)); ++tile)
    if (const double t = predicted_microseconds(g, tile, shares, processors); !best || t < least)
      best = kTiles[tile], least = t;
  constexpr int kGroup = 16;
  if (shares == 1) return run_tiles(s, g, *best, kGroup);
  auto* const parts = static_cast<float*>(workspace(s));
  run_tiles(s, g, *best, kGroup, shares, parts, padded(g.n));
  add_parts_of(s, g, parts, shares, padded(g.n));
}

}  // namespace

void row_invariant_gemm(Stream& s, const Gemm& g) {
  if (!has_sm90a(s) || !fits_tiles(g)) return plain_tile_gemm(s, g);
  const int shares = shares_of_k(g.n, g.k);
  const auto most = static_cast<std::int64_t>(kWorkspaceBytes / 4) / (g.batch * shares * padded(g.n)) / 128 * 128;
  if (shares == 1 || g.m <= most) return in_tiles(s, g, shares);
  require(g.batch == 1 && most > 0, "matmul", "{} matrices of {} columns are more than row-invariant products take",
          g.batch, g.n);
  for (std::int64_t row = 0; row < g.m; row += most)
    in_tiles(s, block_of(g, row, std::min(most, g.m - row), 0, g.n), shares);
}

}  // namespace hpcdl::cuda
