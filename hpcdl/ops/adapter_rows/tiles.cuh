#pragma once
// Tiles of 16 neighbouring rows on tensor cores: for many rows, of which neighbours mostly belong to one text. A tile is
// multiplied by the matrices of each adapter that one of its rows has, and of the products each row takes its own.

#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/adapter_rows/operands.cuh"

namespace hpcdl::cuda {
namespace adapter_tile {

// Threads of a warp as mma_16x8x16() has them: g = lane / 4, t = lane % 4. Along k, thread t holds 8 neighbours of 32 in
// both operands, which are two products of 16 in another order: its loads have 16 bytes.
constexpr int kRows = 16, kWarps = 8, kThreads = kWarps * kWarp, kPiece = 8, kBlockK = 4 * kPiece;

template <class T> using Piece = Pack<T, kPiece>;

/// c += the products of 32 k; low, high: of rows g and g + 8 of the first operand.
template <class T>
__device__ void multiply(float (&c)[4], const Piece<T>& low, const Piece<T>& high, const Piece<T>& b) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned a[4] = {low.w[i], high.w[i], low.w[i + 1], high.w[i + 1]};
    mma_16x8x16<T>(c, a, b.w[i], b.w[i + 1]);
  }
}

/// The choices of the rows of a tile, and each adapter once.
struct Choices {
  int of[kRows];

  __device__ void load(const AdapterOperands& p, int first) {
    const auto i = static_cast<int>(threadIdx.x);
    if (i < kRows) of[i] = first + i < p.rows ? p.adapter(p.chosen[first + i]).number : -1;
    __syncthreads();
  }
  /// f(adapter) for each that a row has. All threads of the block call.
  template <class F> __device__ void each(const AdapterOperands& p, F&& f) const {
    for (int i = 0; i < kRows; ++i) {
      bool known = of[i] < 0;
      for (int j = 0; j < i; ++j) known = known || of[j] == of[i];
      if (!known) f(p.adapter(of[i]));
    }
  }
};

/// low = scale A x. The warps of a block share k.
template <class T> __global__ void __launch_bounds__(kThreads) lower(const __grid_constant__ AdapterOperands p) {
  constexpr int kTiles = 8, kRanks = kTiles * 8;  // computed at once
  __shared__ Choices choices;
  __shared__ float parts[kWarps][kRows][kRanks];
  let_next_begin();
  await_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4,
            t = lane % 4, first = static_cast<int>(blockIdx.x) * kRows;
  choices.load(p, first);
  const auto piece_of = [&](int r, int k) {
    return first + r < p.rows && k < p.inputs ? read_aligned<kPiece>(p.row<T>(p.x, p.x_stride, first + r) + k)
                                              : Piece<T>{};
  };
  choices.each(p, [&](const Adapter& own) {
    const T* const a = static_cast<const T*>(p.a) + std::int64_t{own.begin} * p.inputs;
    for (int rank0 = 0; rank0 < own.rank; rank0 += kRanks) {
      float c[kTiles][4] = {};
      for (int k = warp * kBlockK + t * kPiece; k - t * kPiece < p.inputs; k += kWarps * kBlockK) {
        const auto low = piece_of(g, k), high = piece_of(g + 8, k);
        Piece<T> w[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const int j = rank0 + i * 8 + g;
          w[i] = j < own.rank && k < p.inputs ? read_aligned<kPiece>(a + std::int64_t{j} * p.inputs + k) : Piece<T>{};
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          if (rank0 + i * 8 < own.rank) multiply<T>(c[i], low, high, w[i]);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) parts[warp][g + e / 2 * 8][i * 8 + 2 * t + e % 2] = c[i][e];
      __syncthreads();
      const float scale = p.scales[own.number];
      for (int e = static_cast<int>(threadIdx.x); e < kRows * kRanks; e += kThreads) {
        const int r = e / kRanks, j = e % kRanks;
        if (choices.of[r] != own.number || rank0 + j >= own.rank) continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += parts[w][r][j];
        p.row<T>(p.low, p.ranks, first + r)[own.begin + rank0 + j] = narrow<T>(scale * sum);
      }
    }
  });
}

/// y = base + B low + shift. A warp computes 32 columns, of which a thread has 8 neighbours of two rows: column c of its
/// product i is column c / 2 * 8 + 2 i + c % 2 of them.
template <class T> __global__ void __launch_bounds__(kThreads) raise(const __grid_constant__ AdapterOperands p) {
  constexpr int kTiles = 4, kColumns = kTiles * 8;
  __shared__ Choices choices;
  let_next_begin();
  await_previous();
  const int blocks = (p.outputs + kWarps * kColumns - 1) / (kWarps * kColumns),
            lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, g = lane / 4,
            t = lane % 4, first = static_cast<int>(blockIdx.x) / blocks * kRows,
            col = (static_cast<int>(blockIdx.x) % blocks * kWarps + warp) * kColumns;
  choices.load(p, first);
  if (col >= p.outputs) return;
  const int mine = col + t * kPiece;
  const auto put = [&](int r, auto&& value) {
    if (mine >= p.outputs) return;
    const auto base = read_aligned<kPiece>(p.row<T>(p.base, p.base_stride, first + r) + mine);
    write_aligned(p.row<T>(p.y, p.y_stride, first + r) + mine, value(base));
  };
  choices.each(p, [&](const Adapter& own) {
    const T* const b = static_cast<const T*>(p.b) + std::int64_t{own.begin} * p.outputs;
    const auto low_of = [&](int r, int j) {
      return choices.of[r] == own.number
                 ? read<kPiece>(p.row<T>(p.low, p.ranks, first + r) + own.begin + j, 0, own.rank - j, T{})
                 : Piece<T>{};
    };
    float c[kTiles][4] = {};
    for (int j = t * kPiece; j - t * kPiece < own.rank; j += kBlockK) {
      const auto low = low_of(g, j), high = low_of(g + 8, j);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int n = col + g / 2 * 8 + 2 * i + g % 2;
        const auto w =
            n < p.outputs ? read<kPiece>(b + std::int64_t{n} * own.rank + j, 0, own.rank - j, T{}) : Piece<T>{};
        multiply<T>(c[i], low, high, w);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = g + half * 8;
      if (choices.of[r] != own.number) continue;
      put(r, [&](const Piece<T>& base) {
        auto v = widen(base);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) v.v[i] += c[i / 2][half * 2 + i % 2] + p.shift(own, mine + i);
        return pack<T>(v);
      });
    }
  });
  if (p.base == p.y) return;
#pragma unroll
  for (int r = g; r < kRows; r += 8)
    if (choices.of[r] < 0 && first + r < p.rows) put(r, [](const Piece<T>& base) { return base; });
}

/// Whether its accesses of 16 bytes fit the operands.
template <class T> bool fits(const AdapterOperands& p) {
  bool whole = p.inputs % kPiece == 0 && p.outputs % kPiece == 0;
  for (const void* at : {p.x, p.a, p.base, static_cast<const void*>(p.y)})
    whole = whole && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  for (const auto stride : {p.x_stride, p.base_stride, p.y_stride}) whole = whole && stride % kPiece == 0;
  return whole;
}

template <class T> void run(Stream& s, const AdapterOperands& p) {
  const bool overlap = overlaps(s, p.rows);
  const unsigned tiles = blocks_for(p.rows, kRows);
  if (p.ranks > 0)
    launch_overlapped(queue(s), overlap, lower<T>, {.grid = tiles, .block = kThreads}, "adapter_rows", p);
  launch_overlapped(
      queue(s), overlap, raise<T>,
      {.grid = blocks_for(std::int64_t{tiles} * blocks_for(p.outputs, kWarps * 32), 1), .block = kThreads},
      "adapter_rows", p);
}

}  // namespace adapter_tile
}  // namespace hpcdl::cuda
