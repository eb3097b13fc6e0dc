#pragma once
// The order in which the clusters of a launch go through tiles: fixed (Raster), or from a counter in memory (Ticket).

#include "hpcdl/cuda/tile/channel.cuh"

namespace hpcdl::cuda {

/// for (const int tile : Raster<kBlocks>{tiles}): cluster c of n, of kBlocks blocks each, has tiles c, c + n, ...
template <int kBlocks = 1> struct Raster {
  int tiles;
  struct At {
    int tile;
    __device__ int operator*() const { return tile; }
    __device__ void operator++() { tile += static_cast<int>(gridDim.x) / kBlocks; }
    __device__ bool operator!=(int end) const { return tile < end; }
  };
  __device__ At begin() const { return {static_cast<int>(blockIdx.x) / kBlocks}; }
  __device__ int end() const { return tiles; }
};

/// Tile t of rows x columns in groups of `group` rows, whose tiles of a column follow each other.
struct InGroups {
  int row, column;

  __device__ static InGroups find(int t, int rows, int columns, int group) {
    const int per_group = group * columns, number = t / per_group, first = number * group,
              here = ::min(group, rows - first);
    t -= number * per_group;
    return {first + t % here, t / here};
  }
};

/// Stores v to `to` of block `rank` of the cluster, where it counts as its bytes at b.
__device__ inline void send_to(unsigned rank, float2* to, Barrier* b, float2 v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::"r"(address_at(rank, to)),
      "r"(address_at(rank, b)), "f"(v.x), "f"(v.y)
      : "memory");
}
__device__ inline void send_to(unsigned rank, int* to, Barrier* b, int v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(address_at(rank, to)),
               "r"(address_at(rank, b)), "r"(v)
               : "memory");
}

/// The first tile of a cluster by its number, the others from a counter in memory, 0 at first, that all clusters share:
/// if tiles are divided in advance, all wait for the clusters with the least memory bandwidth (softmax of long rows:
/// 0.91 of a copy instead of 0.95). The producer of block 0 requests a tile while it loads the previous one, and
/// announces it to all blocks. kAhead: the number that may be announced before all blocks must have received the oldest.
template <int kAhead> struct Ticket {
  int *told, *counter;  // [kAhead] in shared memory; in global memory
  Mailbox<kAhead, 4> news;
  int clusters, blocks;
  Ring<kAhead> at = {};

  /// Called by one thread of block 0.
  __device__ void ask() const {
    const int tile = clusters + atomicAdd(counter, 1);
    for (int b = 0; b < blocks; ++b) send_to(static_cast<unsigned>(b), told + at.stage, news.full + at.stage, tile);
  }
  /// expect_another: true in one thread of each block.
  __device__ int next(bool expect_another) {
    news.get(at, expect_another);
    const int tile = told[at.stage];
    at.next();
    return tile;
  }
};

}  // namespace hpcdl::cuda
