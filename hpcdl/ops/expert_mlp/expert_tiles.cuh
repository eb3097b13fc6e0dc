#pragma once
// Products of a mixture in 16-bit types on tensor cores: kRows choices of one expert by 128 rows of its matrices per
// block, which are 64 of gate and the same 64 of up, or 128 of down; those of 4 bits are rounded to T. How many tiles an expert has is known only on the
// GPU: the grid has room for any choice, and blocks without a tile end.

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/expert_mlp/tile_of_expert.cuh"
#include "hpcdl/ops/fuse/activations.h"

namespace hpcdl::cuda {

template <int kRows_, bool kGated_, bool kInt4_> struct ExpertTiles {
  static constexpr int kRows = kRows_, kColumns = 128, kDepth = 64, kThreads = 256;
  static constexpr bool kGated = kGated_, kInt4 = kInt4_;
  static constexpr int kResults = kGated ? kColumns / 2 : kColumns;  // columns of the result
  // A block of 128 choices of 4-bit weights needs more registers than half a multiprocessor has.
  static constexpr int kResident = kRows == 128 && kInt4 ? 1 : 2, kStages = kRows == 64 ? 4 : 3;
  static constexpr int kLine = kDepth * 2, kStageBytes = (kRows + kColumns) * kLine, kBytes = kStages * kStageBytes;
  static constexpr int kWarpsM = 2, kWarpsN = 4, kTilesM = kRows / kWarpsM / 16, kTilesN = kColumns / kWarpsN / 8;
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
  /// Two sums of tile (i, j) from row g + 8 half on, as they are stored.
  __device__ Lanes<2> rounded(int i, int j, int half) const {
    return map<2>([&](int e) { return widen(narrow<T>(acc[i][j][half * 2 + e])); });
  }
  /// Writes the results of these two columns to row `at` of what p says.
  __device__ void write(const MixtureProduct& p, int i, int j, int half, std::int64_t at) const {
    Lanes<2> v = rounded(i, j, half);
    if constexpr (S::kGated) {
      const Lanes<2> up = rounded(i, j + S::kTilesN / 2, half);
      if (p.gate) {
        write_aligned(static_cast<T*>(p.gate) + at, pack<T>(v));
        write_aligned(static_cast<T*>(p.up) + at, pack<T>(up));
      }
      v = (p.gelu ? fuse::GeluTanh::value(v) : fuse::Silu::value(v)) * up;
    }
    write_aligned(static_cast<T*>(p.to) + at, pack<T>(v));
  }
};

/// A thread's part of the copies of choices' rows: one piece of every 32nd row.
template <class T, class S> struct ChoiceCopies {
  static constexpr int kEvery = S::kThreads / 8, kRows = S::kRows / kEvery;
  int row[kRows];  // of what choices multiply; -1: none

  __device__ ChoiceCopies(const MixtureProduct& p, const std::int32_t* choices, int rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = static_cast<int>(threadIdx.x) / 8 + i * kEvery;
      row[i] = at < rows ? p.row_of<S::kGated>(choices[at]) : -1;
    }
  }
  __device__ void bring(const MixtureProduct& p, unsigned char* stage, int k) const {
    const int piece = static_cast<int>(threadIdx.x) % 8, row0 = static_cast<int>(threadIdx.x) / 8, at = k + piece * 8;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool there = at < p.k && row[i] >= 0;
      copy_16(stage + piece_at(row0 + i * kEvery, piece),
              static_cast<const T*>(p.from) + (there ? row[i] * p.from_stride + at : 0), there);
    }
  }
};

/// The same of dense matrices.
template <class T, class S> struct DenseCopies {
  static constexpr int kEvery = S::kThreads / 8, kRows = S::kColumns / kEvery;
  const T *first, *second;
  int n0;

  __device__ DenseCopies(const MixtureProduct& p, int expert, int begin)
      : first(static_cast<const T*>(p.first.w[expert])), second(static_cast<const T*>(p.second.w[expert])), n0(begin) {}
  __device__ void bring(const MixtureProduct& p, unsigned char* stage, int k) const {
    const int piece = static_cast<int>(threadIdx.x) % 8, row0 = static_cast<int>(threadIdx.x) / 8, at = k + piece * 8;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool of_second = S::kGated && i >= kRows / 2;
      const int row = row0 + i * kEvery, n = n0 + (of_second ? row - S::kResults : row);
      const bool there = at < p.k && n < p.n;
      const std::int64_t stride = of_second ? p.second.stride : p.first.stride;
      copy_16(stage + piece_at(S::kRows + row, piece), (of_second ? second : first) + (there ? n * stride + at : 0),
              there);
    }
  }
};

/// The same of matrices of 4 bits: a thread has every other piece of one row, loads it a step ahead into registers, and
/// widens it.
template <class T, class S> struct PackedCopies {
  static constexpr int kPieces = S::kColumns * 8 / S::kThreads, kEvery = 8 / kPieces;
  PackedRow from;
  bool there;
  EightWeights coming[kPieces];

  __device__ static int row() { return static_cast<int>(threadIdx.x) % S::kColumns; }
  __device__ static int piece(int i) { return static_cast<int>(threadIdx.x) / S::kColumns + i * kEvery; }
  __device__ PackedCopies(const MixtureProduct& p, int expert, int n0)
      : PackedCopies(S::kGated && row() >= S::kResults ? p.second : p.first, p, expert, n0 + row() % S::kResults) {}
  __device__ void load(const MixtureProduct& p, int k) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      coming[i] = there && k + piece(i) * 8 < p.k ? from.at(k + piece(i) * 8) : EightWeights();
  }
  __device__ void bring(const MixtureProduct& p, unsigned char* stage, int k) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      write_aligned(reinterpret_cast<T*>(stage + piece_at(S::kRows + row(), piece(i))), pack<T>(coming[i].values()));
    load(p, k + S::kDepth);
  }

 private:
  __device__ PackedCopies(const ExpertWeights& of, const MixtureProduct& p, int expert, int n)
      : from(of, p, expert, n < p.n ? n : 0), there(n < p.n) {
    load(p, 0);
  }
};

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    expert_tiles(const __grid_constant__ MixtureProduct p, int columns) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const TileOfExpert tile = TileOfExpert::find(p, static_cast<int>(blockIdx.x), S::kRows, columns);
  if (tile.expert < 0) return;
  const std::int32_t* const choices = p.list(tile.expert) + tile.first;
  const int rows = ::min(S::kRows, tile.count - tile.first), n0 = tile.column * S::kResults,
            steps = (p.k + S::kDepth - 1) / S::kDepth;
  const ChoiceCopies<T, S> of_choices(p, choices, rows);
  std::conditional_t<S::kInt4, PackedCopies<T, S>, DenseCopies<T, S>> of_weights(p, tile.expert, n0);
  const auto bring = [&](int step) {
    if (step < steps) {
      unsigned char* const stage = memory + step % S::kStages * S::kStageBytes;
      of_choices.bring(p, stage, step * S::kDepth), of_weights.bring(p, stage, step * S::kDepth);
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
      const std::int64_t at = std::int64_t{choices[row]} * p.n;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int column = n0 + sums.column(warp, j / 2) + j % 2 * 8 + lane % 4 * 2;
        if (column < p.n) sums.write(p, i, j, half, at + column);
      }
    }
}

}  // namespace hpcdl::cuda
