#pragma once
// Grouped products on Hopper's tensor cores: tiles of 128 x 256 of a result in 16-bit types with f32 sums, whose number or
// depth depends on how many rows the experts have. A block iterates over tiles, and the loads of the next tile overlap the
// stores of the last one.

#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/expert_mlp/sorted_rows.cuh"
#include "hpcdl/ops/expert_mlp/whole_pieces.cuh"

namespace hpcdl::cuda {

/// The experts of one launch: `all` from `first_expert` on.
struct GroupedExperts : Choices {
  Choices all;
  int first_expert;

  __device__ int begin_of(int expert) const { return first_row(all, first_expert + expert); }
};

struct WideRows : GroupedExperts {
  TensorMap from[RowsProduct::kMostTerms], w[RowsProduct::kMostTerms][kMostWideExperts];
  int terms;
  void* to;
  int n, k, columns;  // columns: tiles of a row
};

struct WideGradient : GroupedExperts {
  TensorMap left, right;
  void* to[kMostWideExperts];
  bool accumulate[kMostWideExperts];
  int m, n, tiles_m, tiles_n;
};
static_assert(sizeof(WideRows) < 32 << 10 && sizeof(WideGradient) < 32 << 10);  // kernel parameters

struct GroupedShape {
  static constexpr int kM = 128, kN = 256, kDepth = kRowTile, kStages = 4, kConsumers = 2,
                       kThreads = 128 * (kConsumers + 1);
  /// Of 64 x 64 elements.
  static constexpr int kPiece = 64 * 128, kABytes = kM / 64 * kPiece, kStageBytes = kABytes + kN / 64 * kPiece;
};
struct GroupedMemory
    : Arena<Room<unsigned char, GroupedShape::kStages * GroupedShape::kStageBytes, 1024>,
            Stages<Channel<GroupedShape::kStages, Warps<GroupedShape::kConsumers * 4>, Reads::tensor_cores>>> {
  __device__ unsigned char* a(int stage) const { return this->template part<0>() + stage * GroupedShape::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + GroupedShape::kABytes; }
  __device__ auto stages() const { return this->template part<1>(); }
};

#if HPCDL_SM90A

/// f(tile, its first row in memory) for the tiles of this block. Called by whole warps.
template <class F> __device__ void for_each_tile(const WideRows& p, F&& f) {
  for (int i = static_cast<int>(blockIdx.x);; i += static_cast<int>(gridDim.x)) {
    const TileOfExpert tile = TileOfExpert::find(p, i, GroupedShape::kM, p.columns);
    if (tile.expert < 0) return;
    f(tile, p.begin_of(tile.expert) + tile.first);
  }
}

/// f(expert, m0, n0, first row, rows) for the tiles of this block that are wanted. Called by whole warps.
template <class F> __device__ void for_each_tile(const WideGradient& p, F&& f) {
  const int of_expert = p.tiles_m * p.tiles_n;
  for (int i = static_cast<int>(blockIdx.x); i < p.mlps * of_expert; i += static_cast<int>(gridDim.x)) {
    const int expert = i / of_expert, at = i % of_expert;
    if (!p.to[expert]) continue;
    f(expert, at / p.tiles_n * GroupedShape::kM, at % p.tiles_n * GroupedShape::kN, p.begin_of(expert),
      whole_tiles(p.count(expert)));
  }
}

/// Pieces of 64 columns from c0 on and 64 rows from r0 on, next to each other.
template <int kColumns>
__device__ void load_pieces(unsigned char* to, const TensorMap& map, Barrier* full, int c0, int r0) {
#pragma unroll
  for (int i = 0; i < kColumns / 64; ++i) tma_load(to + i * GroupedShape::kPiece, map, full, c0 + i * 64, r0);
}

__device__ inline void produce(const WideRows& p, const GroupedMemory& memory) {
  using S = GroupedShape;
  const auto stages = memory.stages();
  auto at = stages.to_put();
  const bool loads = threadIdx.x % kWarp == 0;
  for_each_tile(p, [&](const TileOfExpert& tile, int row) {
    for (int t = 0; loads && t < p.terms; ++t)
      for (int k = 0; k < p.k; k += S::kDepth, at.next()) {
        Barrier* const full = stages.put(at, S::kStageBytes);
        tma_load(memory.a(at.stage), p.from[t], full, k, row);
        load_pieces<S::kN>(memory.b(at.stage), p.w[t][tile.expert], full, tile.column * S::kN, k);
      }
    __syncwarp();
  });
}

__device__ inline void produce(const WideGradient& p, const GroupedMemory& memory) {
  using S = GroupedShape;
  const auto stages = memory.stages();
  auto at = stages.to_put();
  const bool loads = threadIdx.x % kWarp == 0;
  for_each_tile(p, [&](int, int m0, int n0, int row, int rows) {
    for (int r = 0; loads && r < rows; r += S::kDepth, at.next()) {
      Barrier* const full = stages.put(at, S::kStageBytes);
      load_pieces<S::kM>(memory.a(at.stage), p.left, full, m0, row + r);
      load_pieces<S::kN>(memory.b(at.stage), p.right, full, n0, row + r);
    }
    __syncwarp();
  });
}

using GroupedSums = float[GroupedShape::kN / 2];

/// sums = the products of the next `steps` stages; B runs along n in memory.
template <class T, Major kA, class Stages, class At>
__device__ void sum_stages(GroupedSums& sums, const GroupedMemory& memory, const Stages& stages, At& at, int group,
                           int steps) {
  using S = GroupedShape;
  int before = -1;
  for (int step = 0; step < steps; ++step, at.next()) {
    stages.get(at);
    const auto a = wgmma_descriptor<kA>(memory.a(at.stage) + group * S::kPiece, S::kDepth),
               b = wgmma_descriptor<Major::mn>(memory.b(at.stage), S::kDepth);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::kDepth / 16; ++i)
      wgmma<T, kA, Major::mn>(sums, a + i * wgmma_step<kA>, b + i * wgmma_step<Major::mn>, step > 0 || i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (before >= 0) stages.done(before);
    before = at.stage;
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (before >= 0) stages.done(before);
}

/// f(row, column, piece) for the elements of type T that a thread of consumers is to write, within the tile.
template <class T, class F> __device__ void for_each_result(const GroupedSums& sums, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    for_each_piece<T, GroupedShape::kN>(
        [&](int j) { return map<2>([&](int e) { return sums[4 * j + 2 * half + e]; }); },
        [&](int column, const auto& piece) { f(warp_index() * 16 + lane / 4 + half * 8, column, piece); });
}

template <class T> __device__ void consume(const WideRows& p, const GroupedMemory& memory, int group) {
  using S = GroupedShape;
  const auto stages = memory.stages();
  Ring<S::kStages> at;
  const int steps = (p.k + S::kDepth - 1) / S::kDepth * p.terms;
  for_each_tile(p, [&](const TileOfExpert& tile, int row0) {
    GroupedSums sums;
    sum_stages<T, Major::k>(sums, memory, stages, at, group, steps);
    if (tile.first + group * 64 >= tile.count) return;  // rows of the next expert
    const int n0 = tile.column * S::kN;
    for_each_result<T>(sums, [&](int row, int column, const auto& piece) {
      if (n0 + column < p.n) write_aligned(static_cast<T*>(p.to) + std::int64_t{row0 + row} * p.n + n0 + column, piece);
    });
  });
}

template <class T, class G> __device__ void consume(const WideGradient& p, const GroupedMemory& memory, int group) {
  using S = GroupedShape;
  const auto stages = memory.stages();
  Ring<S::kStages> at;
  for_each_tile(p, [&](int expert, int m0, int n0, int, int rows) {
    GroupedSums sums;
    if (rows == 0) {
#pragma unroll
      for (float& v : sums) v = 0;
    } else {
      sum_stages<T, Major::mn>(sums, memory, stages, at, group, rows / S::kDepth);
    }
    const bool accumulate = p.accumulate[expert];
    for_each_result<G>(sums, [&]<int K>(int row, int column, const Pack<G, K>& piece) {
      if (m0 + row >= p.m || n0 + column >= p.n) return;
      G* const to = static_cast<G*>(p.to[expert]) + std::int64_t{m0 + row} * p.n + n0 + column;
      if (accumulate) write_aligned(to, pack<G>(widen(piece) + widen(read_aligned<K>(static_cast<const G*>(to)))));
      else write_aligned(to, piece);
    });
  });
}

#endif

template <class T>
__global__ void __launch_bounds__(GroupedShape::kThreads, 1) grouped_rows(const __grid_constant__ WideRows p) {
#if HPCDL_SM90A
  const GroupedMemory memory;
  memory.start(p.from[0]);
  roles<Producers<40, 1, kWarp>, Consumers<GroupedShape::kConsumers, 232>>(
      [&](int) { produce(p, memory); }, [&](int group) { consume<T>(p, memory, group); });
#endif
}

template <class T, class G>
__global__ void __launch_bounds__(GroupedShape::kThreads, 1) grouped_gradient(const __grid_constant__ WideGradient p) {
#if HPCDL_SM90A
  const GroupedMemory memory;
  memory.start(p.left, p.right);
  roles<Producers<40, 1, kWarp>, Consumers<GroupedShape::kConsumers, 232>>(
      [&](int) { produce(p, memory); }, [&](int group) { consume<T, G>(p, memory, group); });
#endif
}

}  // namespace hpcdl::cuda
