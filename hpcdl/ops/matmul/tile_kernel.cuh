#pragma once
// The matrix product on Hopper's tensor cores (sm_90a): a persistent kernel in which one warp keeps the copy engine
// busy and one or two warpgroups multiply. Stages of shared memory hold kDepth of k for a tile of A and of B; a block
// iterates over tiles of D, and the loads of the next tile overlap the stores of the last one.
//
// With a cluster of two, its blocks process tiles one below the other: each loads half of their common tile of B for
// both. Results pass through shared memory, 64 rows of 128 bytes at a time, and are stored by the copy engine, which
// skips elements outside of D. An operand C of D's type (a residual, or the previous contents of D) is loaded to the
// same place while the products are computed.

#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/matmul/tile_epilogue.cuh"

namespace hpcdl::cuda {

/// The shape of one kernel: the tile of D (kM x kN), stages in flight, blocks per cluster, and whether its two consumer
/// warpgroups share every tile or alternate between tiles, so that one multiplies while the other stores its results.
template <int kM_, int kN_, int kStages_, int kCluster_, bool kInTurn_> struct TileShape {
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_, kCluster = kCluster_, kDepth = 64;
  static constexpr bool kInTurn = kInTurn_;
  static constexpr int kConsumers = 2, kSharers = kInTurn ? 1 : kConsumers;  // consumer warpgroups; those that share a
                                                                             // stage
  static constexpr int kBlocks = kM / kSharers / 64;                         // of 64 rows, per warpgroup
  static constexpr int kABytes = kM * kDepth * 2, kBBytes = kN * kDepth * 2, kStageBytes = kABytes + kBBytes;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kPieces = kBlocks * (kN / 64);         // of 16-bit results, 64 x 64 each, per warpgroup
  static constexpr int kBuffers = kPieces < 2 ? 2 : kPieces;  // for pieces of results, per warpgroup
  static_assert(kN / 64 % kCluster == 0 && kM % (64 * kSharers) == 0);
};

struct TileProblem {
  int n = 0, tiles_m = 0, tiles_n = 0, group = 8;  // tiles_m in clusters; `group` of them share tiles of B in L2
  int tiles = 0;                                   // over all matrices and splits
  int splits = 1, k_blocks = 0, k_blocks_per_split = 0;
  bool a_batched = false, b_batched = false;
  TileEpilogue out;
};

/// Tile number t of a cluster: first row and column, matrix, part of k.
struct TilePlace {
  int m0, n0, matrix, layer, k_begin, k_end;

  template <class S> __device__ static TilePlace of(const TileProblem& p, int t, int rank) {
    TilePlace at;
    const int per_layer = p.tiles_m * p.tiles_n;
    at.layer = t / per_layer;
    t -= at.layer * per_layer;
    at.matrix = at.layer / p.splits;
    const int split = at.layer - at.matrix * p.splits;
    at.k_begin = split * p.k_blocks_per_split;
    at.k_end = ::min(at.k_begin + p.k_blocks_per_split, p.k_blocks);
    const auto place = InGroups::find(t, p.tiles_m, p.tiles_n, p.group);
    at.n0 = place.column * S::kN, at.m0 = (place.row * S::kCluster + rank) * S::kM;
    return at;
  }
};

template <class S>
struct TileMemory
    : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>,
            Room<unsigned char, S::kConsumers * S::kBuffers * kPieceBytes, 1024>, Room<float, S::kConsumers * S::kN>,
            Stages<Channel<S::kStages, Warps<S::kSharers * 4>, Reads::tensor_cores, S::kCluster>>,
            Stages<Arrivals<S::kConsumers>>> {
  __device__ unsigned char* a(int stage) const { return this->template part<0>() + stage * S::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + S::kABytes; }
  __device__ unsigned char* out(int group, int i) const {
    return this->template part<1>() + (group * S::kBuffers + i) * kPieceBytes;
  }
  __device__ float* bias(int group) const { return this->template part<2>() + group * S::kN; }
  __device__ auto stages() const { return this->template part<3>(); }
  __device__ auto c() const { return this->template part<4>(); }
};

struct TileMaps {
  TensorMap a, b, c, d, z;
};

#if HPCDL_SM90A

/// The producer thread: all loads of all tiles of this block, in order.
template <class S, Major kA, Major kB>
__device__ void produce(const TileMaps& maps, const TileProblem& p, const TileMemory<S>& memory, int rank) {
  const auto stages = memory.stages();
  auto at = stages.to_put();
  const auto load_b = [&](unsigned char* to, Barrier* full, int c0, int c1, int matrix) {
    if constexpr (S::kCluster > 1) tma_load_to((1u << S::kCluster) - 1, to, maps.b, full, c0, c1, matrix);
    else tma_load(to, maps.b, full, c0, c1, matrix);
  };
  for (const int t : Raster<S::kCluster>{p.tiles}) {
    const auto tile = TilePlace::of<S>(p, t, rank);
    const int ma = p.a_batched ? tile.matrix : 0, mb = p.b_batched ? tile.matrix : 0;
    constexpr int kShare = S::kN / S::kCluster;
    const int n0 = tile.n0 + rank * kShare;
    for (int kb = tile.k_begin; kb < tile.k_end; ++kb, at.next()) {
      Barrier* full = stages.put(at, S::kStageBytes);
      const int k0 = kb * S::kDepth;
      unsigned char *a = memory.a(at.stage), *b = memory.b(at.stage) + rank * kShare * 128;
      if constexpr (kA == Major::k) {
        tma_load(a, maps.a, full, k0, tile.m0, ma);
      } else {
#pragma unroll
        for (int i = 0; i < S::kM; i += 64) tma_load(a + i * 128, maps.a, full, tile.m0 + i, k0, ma);
      }
      if constexpr (kB == Major::k) {
        load_b(b, full, k0, n0, mb);
      } else {
#pragma unroll
        for (int i = 0; i < kShare; i += 64) load_b(b + i * 128, full, n0 + i, k0, mb);
      }
    }
  }
}

/// A warpgroup's part of all tiles: from row group * kBlocks * 64 on.
template <class T, class S, Major kA, Major kB>
__device__ void consume(const TileMaps& maps, const TileProblem& p, const TileMemory<S>& memory, int rank, int group) {
  Ring<S::kStages> at;
  const auto stages = memory.stages();
  TileWriter<T, S> writer{maps, p.out, memory, group, static_cast<int>(threadIdx.x) % 128, {.barrier = 1 + group}};
  const int first_block = S::kInTurn ? 0 : group * S::kBlocks;
  bool mine = S::kInTurn && group == 1;
  if (mine) named_arrive(3, 256);
  for (const int t : Raster<S::kCluster>{p.tiles}) {
    const auto tile = TilePlace::of<S>(p, t, rank);
    if constexpr (S::kInTurn) {
      mine = !mine;
      if (!mine) {
        at.skip(tile.k_end - tile.k_begin);
        continue;
      }
    }
    constexpr int kBlockSums = S::kN / 2;
    float acc[S::kBlocks * kBlockSums];
    const auto of_block = [&](int i) -> float (&)[kBlockSums] {
      return *reinterpret_cast<float (*)[kBlockSums]>(acc + i * kBlockSums);
    };
    writer.fetch_bias(tile.n0, p.n);
    writer.fetch_c(tile.m0, tile.n0, tile.layer);
    // In turn, because waiting for a stage distinguishes only neighbouring phases.
    if constexpr (S::kInTurn) named_sync(3 + group, 256);
    int before = -1;
    for (int kb = tile.k_begin; kb < tile.k_end; ++kb, at.next()) {
      stages.get(at);
      const auto b = wgmma_descriptor<kB>(memory.b(at.stage), S::kDepth);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < S::kDepth / 16; ++k)
#pragma unroll
        for (int i = 0; i < S::kBlocks; ++i)
          wgmma<T, kA, kB>(of_block(i),
                           wgmma_descriptor<kA>(memory.a(at.stage) + (first_block + i) * kPieceBytes, S::kDepth) +
                               k * wgmma_step<kA>,
                           b + k * wgmma_step<kB>, k > 0 || kb > tile.k_begin);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0) stages.done(before);
      before = at.stage;
    }
    if constexpr (S::kInTurn) named_arrive(4 - group, 256);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < S::kBlocks; ++i) wgmma_pin(of_block(i));
    stages.done(before);
    writer.write(acc, tile.m0, tile.n0, tile.layer);
  }
  if (Leaving::leader()) tma_wait_read<0>();
}

#endif

template <class T, class S, Major kA, Major kB>
__global__ void __launch_bounds__(S::kThreads, 1)
    tile_gemm(const __grid_constant__ TileMaps maps, const __grid_constant__ TileProblem p) {
#if HPCDL_SM90A
  const TileMemory<S> memory;
  const int rank = S::kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  memory.template start<S::kCluster>(maps.a, maps.b, maps.d);
  roles<Producers<40>, Consumers<S::kConsumers, 232>>(
      [&](int) { produce<S, kA, kB>(maps, p, memory, rank); },
      [&](int group) { consume<T, S, kA, kB>(maps, p, memory, rank, group); });
  __syncwarp();
  if constexpr (S::kCluster > 1) cluster_sync();  // no block may exit while another may still write to it
#endif
}

}  // namespace hpcdl::cuda
