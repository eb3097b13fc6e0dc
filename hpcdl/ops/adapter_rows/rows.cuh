#pragma once
// Each row by itself: for a few rows, and for types without tensor cores. The bits of a row do not depend on others.

#include <algorithm>

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/adapter_rows/operands.cuh"

namespace hpcdl::cuda {
namespace adapter_row {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kColumns = 256;  // of one block
constexpr int kPiece = 8;

/// low = scale A x. A warp computes one element; blockIdx.y: which of them.
template <class T, class W>
__global__ void __launch_bounds__(kThreads) lower(const __grid_constant__ AdapterOperands p) {
  constexpr int kAhead = 4, kStep = kWarp * kPiece;
  let_next_begin();
  await_previous();
  const std::int64_t row = blockIdx.x;
  const Adapter own = p.adapter_of(row);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, length = p.inputs;
  const T* const x = p.row<T>(p.x, p.x_stride, row);
  for (int j = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarp; j < own.rank;
       j += static_cast<int>(gridDim.y) * kWarps) {
    const W* const a = static_cast<const W*>(p.a) + std::int64_t{own.begin + j} * length;
    Lanes<kPiece> sums(0.0f);
    for (int k0 = lane * kPiece; k0 < length; k0 += kAhead * kStep) {
      Pack<W, kPiece> w[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) w[i] = read<kPiece>(a + k0 + i * kStep, 0, length - k0 - i * kStep, W{});
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        sums = fma(widen(w[i]), widen(read<kPiece>(x + k0 + i * kStep, 0, length - k0 - i * kStep, T{})), sums);
    }
    const float all = warp_reduce(sum(sums), Sum{});
    if (lane == 0) p.row<T>(p.low, p.ranks, row)[own.begin + j] = narrow<T>(p.scales[own.number] * all);
  }
}

/// y = base + B low + shift. Neighbouring lanes share the ranks of a column. Blocks of a row are neighbours.
template <class T, class W>
__global__ void __launch_bounds__(kThreads) raise(const __grid_constant__ AdapterOperands p) {
  let_next_begin();
  await_previous();
  const int parts = (p.outputs + kColumns - 1) / kColumns, part = static_cast<int>(blockIdx.x) % parts;
  const std::int64_t row = static_cast<int>(blockIdx.x) / parts;
  const Adapter own = p.adapter_of(row);
  const T* const base = p.row<T>(p.base, p.base_stride, row);
  T* const y = p.row<T>(p.y, p.y_stride, row);
  if (!own && base == y) return;
  int together = 1;  // lanes of a column
  while (together < kWarp && together * kPiece < own.rank) together *= 2;
  const int lane = static_cast<int>(threadIdx.x) % together, end = ::min((part + 1) * kColumns, p.outputs);
  const T* const low = p.row<T>(p.low, p.ranks, row) + own.begin;
  const W* const b = static_cast<const W*>(p.b) + std::int64_t{own.begin} * p.outputs;
  for (int first = part * kColumns; first < end; first += kThreads / together) {
    const int col = first + static_cast<int>(threadIdx.x) / together;
    const bool exists = col < end;  // lanes without a column take part in the sums of their warp
    float sum = 0;
    for (int j = lane * kPiece; exists && j < own.rank; j += together * kPiece) {
      const auto w = widen(read<kPiece>(b + std::int64_t{col} * own.rank + j, 0, own.rank - j, W{}));
      const auto h = widen(read<kPiece>(low + j, 0, own.rank - j, T{}));
#pragma unroll
      for (int i = 0; i < kPiece; ++i) sum = ::fmaf(w.v[i], h.v[i], sum);
    }
    for (int apart = together / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (exists && lane == 0) y[col] = own ? narrow<T>(widen(base[col]) + (sum + p.shift(own, col))) : base[col];
  }
}

template <class T, class W> void run(Stream& s, const AdapterOperands& p) {
  constexpr int kBlocks = 256, kMostShares = 8;  // of the ranks of a row
  const int shares = std::clamp(kBlocks / p.rows, 1, std::min(kMostShares, (p.ranks + kWarps - 1) / kWarps));
  const bool overlap = overlaps(s, p.rows);
  if (p.ranks > 0)
    launch_overlapped(queue(s), overlap, lower<T, W>,
                      {.grid = {blocks_for(p.rows, 1), static_cast<unsigned>(shares)}, .block = kThreads},
                      "adapter_rows", p);
  launch_overlapped(queue(s), overlap, raise<T, W>,
                    {.grid = blocks_for(p.rows * blocks_for(p.outputs, kColumns), 1), .block = kThreads},
                    "adapter_rows", p);
}

}  // namespace adapter_row
}  // namespace hpcdl::cuda
