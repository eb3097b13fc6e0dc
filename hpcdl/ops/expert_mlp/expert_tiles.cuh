#pragma once
// Products of a mixture in 16-bit types on tensor cores: kRows choices of one expert by 128 rows of its matrices per
// block, which are 64 of gate and the same 64 of up, or 128 of down. How many tiles an expert has is known only on the
// GPU: the grid has room for any choice, and blocks without a tile end.

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/expert_mlp/mixture.cuh"
#include "hpcdl/ops/fuse/activations.h"

namespace hpcdl::cuda {

template <int kRows_, bool kGated_> struct ExpertTiles {
  static constexpr int kRows = kRows_, kColumns = 128, kDepth = 64, kThreads = 256;
  static constexpr bool kGated = kGated_;
  static constexpr int kResults = kGated ? kColumns / 2 : kColumns;  // columns of the result
  static constexpr int kStages = kRows == 64 ? 4 : 3;
  static constexpr int kLine = kDepth * 2, kStageBytes = (kRows + kColumns) * kLine, kBytes = kStages * kStageBytes;
  static constexpr int kWarpsM = 2, kWarpsN = 4, kTilesM = kRows / kWarpsM / 16, kTilesN = kColumns / kWarpsN / 8;
};

struct TileOfExpert {
  int expert = -1, first = 0, count = 0;  // first: in its list of `count` choices

  /// Called by whole warps.
  __device__ static TileOfExpert find(const MixtureProduct& p, int index, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int before = 0;
    for (int base = 0; base < p.mlps; base += kWarp) {
      const int n = base + lane < p.mlps ? p.places[std::int64_t{base + lane} * p.place_stride] : 0,
                tiles = (n + rows - 1) / rows;
      int end = tiles;
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const int other = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += other;
      }
      const unsigned beyond = __ballot_sync(~0u, before + end > index);
      if (beyond) {
        const int at = __ffs(static_cast<int>(beyond)) - 1;
        const int begin = before + __shfl_sync(~0u, end - tiles, at);
        return {base + at, (index - begin) * rows, __shfl_sync(~0u, n, at)};
      }
      before += __shfl_sync(~0u, end, kWarp - 1);
    }
    return {};
  }
};

/// The byte of a stage where eight elements of a row begin: rows are 128 bytes, their pieces in an order that lets eight
/// rows be read at once.
__device__ inline int piece_at(int row, int piece) { return row * 128 + (piece ^ row % 8) * 16; }

/// Sums of one thread, as mma_16x8x16() has them. A warp has kTilesM x 16 rows, and two pairs of eight columns: with
/// kGated, of gate and of the same columns of up.
template <class T, class S> struct ExpertSums {
  float acc[S::kTilesM][S::kTilesN][4] = {};

  __device__ static int row(int warp, int i) { return (warp / S::kWarpsN * S::kTilesM + i) * 16; }
  /// The row of the stage's matrices where pair `pair` of the warp's columns begins.
  __device__ static int column(int warp, int pair) {
    const int of_warp = warp % S::kWarpsN;
    return S::kGated ? pair * S::kResults + of_warp * 16 : of_warp * 32 + pair * 16;
  }
  __device__ void add(const unsigned char* stage, int warp, int lane) {
    const unsigned a_at = shared_address(stage), b_at = a_at + S::kRows * S::kLine;
#pragma unroll
    for (int k = 0; k < S::kDepth / 8; k += 2) {
      unsigned a[S::kTilesM][4], b[S::kTilesN / 2][4];
#pragma unroll
      for (int i = 0; i < S::kTilesM; ++i)
        load_matrices(a[i], a_at + static_cast<unsigned>(piece_at(row(warp, i) + lane % 16, k + lane / 16)));
#pragma unroll
      for (int pair = 0; pair < S::kTilesN / 2; ++pair)
        load_matrices(b[pair], b_at + static_cast<unsigned>(
                                          piece_at(column(warp, pair) + lane / 16 * 8 + lane % 8, k + lane / 8 % 2)));
#pragma unroll
      for (int i = 0; i < S::kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < S::kTilesN; ++j)
          mma_16x8x16<T>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  /// The two results of tile (i, j) from row g + 8 half on.
  __device__ Lanes<2> result(const MixtureProduct& p, int i, int j, int half) const {
    const auto of = [&](int tile) {
      return map<2>([&](int e) { return widen(narrow<T>(acc[i][tile][half * 2 + e])); });
    };
    if constexpr (!S::kGated) return of(j);
    const Lanes<2> gate = of(j), up = of(j + S::kTilesN / 2);
    return (p.gelu ? fuse::GeluTanh::value(gate) : fuse::Silu::value(gate)) * up;
  }
};

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 2) expert_tiles(const __grid_constant__ MixtureProduct p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const TileOfExpert tile = TileOfExpert::find(p, static_cast<int>(blockIdx.y), S::kRows);
  if (tile.expert < 0) return;
  const std::int32_t* const choices = p.places + std::int64_t{tile.expert} * p.place_stride + 1 + tile.first;
  const int rows = ::min(S::kRows, tile.count - tile.first), n0 = static_cast<int>(blockIdx.x) * S::kResults;

  // A thread copies one piece of every 32nd row.
  constexpr int kEvery = S::kThreads / 8;
  const int piece = thread % 8, row0 = thread / 8;
  const T* a[S::kRows / kEvery];
  const T* b[S::kColumns / kEvery];
  bool a_there[S::kRows / kEvery], b_there[S::kColumns / kEvery];
#pragma unroll
  for (int i = 0; i < S::kRows / kEvery; ++i) {
    const int row = row0 + i * kEvery;
    a_there[i] = row < rows;
    a[i] =
        static_cast<const T*>(p.from) + p.row_of<S::kGated>(choices[a_there[i] ? row : 0]) * p.from_stride + piece * 8;
  }
#pragma unroll
  for (int i = 0; i < S::kColumns / kEvery; ++i) {
    const int row = row0 + i * kEvery, n = n0 + (S::kGated ? row % S::kResults : row);
    const bool second = S::kGated && row >= S::kResults;
    b_there[i] = n < p.n;
    b[i] = static_cast<const T*>(second ? p.second[tile.expert] : p.first[tile.expert]) +
           (b_there[i] ? n : 0) * (second ? p.second_stride : p.first_stride) + piece * 8;
  }
  const int steps = (p.k + S::kDepth - 1) / S::kDepth;
  const auto bring = [&](int step) {
    if (step < steps) {
      unsigned char* const stage = memory + step % S::kStages * S::kStageBytes;
      const int k = step * S::kDepth;
      const bool inside = k + piece * 8 < p.k;
#pragma unroll
      for (int i = 0; i < S::kRows / kEvery; ++i)
        copy_16(stage + piece_at(row0 + i * kEvery, piece), a[i] + (inside ? k : 0), inside && a_there[i]);
#pragma unroll
      for (int i = 0; i < S::kColumns / kEvery; ++i)
        copy_16(stage + piece_at(S::kRows + row0 + i * kEvery, piece), b[i] + (inside ? k : 0), inside && b_there[i]);
    }
    copies_issued();
  };
  ExpertSums<T, S> sums;
  for (int step = 0; step < S::kStages - 1; ++step) bring(step);
  for (int step = 0; step < steps; ++step) {
    copies_arrived<S::kStages - 2>();
    __syncthreads();  // this stage has arrived, and all threads are done with the last one
    bring(step + S::kStages - 1);
    sums.add(memory + step % S::kStages * S::kStageBytes, warp, lane);
  }
  constexpr int kTiles = S::kGated ? S::kTilesN / 2 : S::kTilesN;
#pragma unroll
  for (int i = 0; i < S::kTilesM; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = sums.row(warp, i) + half * 8 + lane / 4;
      if (row >= rows) continue;
      T* const to = static_cast<T*>(p.to) + std::int64_t{choices[row]} * p.n;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int column = n0 + sums.column(warp, j / 2) + j % 2 * 8 + lane % 4 * 2;
        if (column < p.n) write_aligned(to + column, pack<T>(sums.result(p, i, j, half)));
      }
    }
}

}  // namespace hpcdl::cuda
