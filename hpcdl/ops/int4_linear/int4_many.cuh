#pragma once
// Many rows of x (prefill): a product of tiles. A block computes kRows of W by kInputs of x, both passing through a
// ring in shared memory in steps of 128 inputs; a warp computes 16 kTiles by 8 kCols of them. Weights are unpacked in
// registers; the integer sums of a group are scaled into float sums before the next group.

#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

template <int kGroup_, int kRowWarps_, int kColWarps_, int kTiles_, int kCols_, int kStages_> struct Many {
  static constexpr int kGroup = kGroup_, kRowWarps = kRowWarps_, kColWarps = kColWarps_, kTiles = kTiles_,
                       kCols = kCols_, kStages = kStages_;
  static constexpr int kThreads = kRowWarps * kColWarps * kWarp, kBlockTiles = kRowWarps * kTiles,
                       kRows = kBlockTiles * static_cast<int>(kTileRows), kInputs = kColWarps * kCols * 8;
  static constexpr int kStep = 128, kGroups = kStep / kGroup, kBlocks = kStep / 8;
  static constexpr int kTileBytes = kStep / 2 * static_cast<int>(kTileRows),
                       kScaleBytes = kGroups * static_cast<int>(kTileRows) * 2;
  static constexpr int kLine = kStep + 32;  // a row of x, and a gap against bank conflicts
  static constexpr int kScales = kBlockTiles * kTileBytes, kOffsets = kScales + kBlockTiles * kScaleBytes,
                       kValues = kOffsets + kBlockTiles * kScaleBytes, kSteps = kValues + kInputs * kLine,
                       kSums = kSteps + kGroups * kInputs * 4, kStageBytes = kSums + kGroups * kInputs * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

/// Issues the copies of weights, scales and offsets of step `step` for the tiles from `row` on.
template <class F>
__device__ void fetch_weights(std::byte* to, const Product& o, std::int64_t row, std::int64_t step, int blocks) {
  constexpr int kUnits = F::kTileBytes / 16, kScaleUnits = F::kScaleBytes / 16, kTile = static_cast<int>(kTileRows);
  for (int i = static_cast<int>(threadIdx.x); i < F::kBlockTiles * kUnits; i += F::kThreads) {
    const std::int64_t tile = row + i / kUnits * kTile, rows = o.n - tile;
    const int at = i % kUnits;
    const std::uint8_t* from = o.packed + packed_at(tile, o.k) + step * F::kBlocks * 4 * (rows < kTile ? rows : kTile);
    if (at / 4 >= blocks) continue;
    if (rows >= kTile && o.aligned) {
      copy16(to + i * 16, from + at * 16);
      continue;
    }
    // The last rows of a matrix, or a mapped file, in which nothing is aligned.
    const int there = static_cast<int>(rows < kTile ? rows : kTile);
    for (int r = at % 4 * 4; r < at % 4 * 4 + 4 && r < there; ++r) {
      const std::uint8_t* p = from + (at / 4 * there + r) * 4;
      reinterpret_cast<unsigned*>(to + i / kUnits * F::kTileBytes)[at / 4 * kTile + r] =
          p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < F::kBlockTiles * kScaleUnits; i += F::kThreads) {
    const std::int64_t tile = row + i / kScaleUnits * kTile, rows = o.n - tile;
    const int at = i % kScaleUnits;
    const std::int64_t from = scale_at(tile, o.groups) + (step * F::kGroups + at / 2) * (rows < kTile ? rows : kTile);
    if (at / 2 >= blocks * 8 / F::kGroup) continue;
    for (const bool offsets : {false, true}) {
      const bf16* source = offsets ? o.offset : o.scale;
      if (!source) continue;
      std::byte* target = to + (offsets ? F::kOffsets : F::kScales) + i * 16;
      if (rows >= kTile && o.aligned) copy16(target, source + from + at % 2 * 8);
      else
        for (int r = 0; r < 8 && at % 2 * 8 + r < rows; ++r)
          reinterpret_cast<bf16*>(target)[r] = source[from + at % 2 * 8 + r];
    }
  }
}

/// Issues the copies of the rounded inputs of the step, their steps and sums.
template <class F>
__device__ void fetch_values(std::byte* to, const Product& o, std::int64_t first, int count, std::int64_t step,
                             int blocks) {
  for (int i = static_cast<int>(threadIdx.x); i < F::kInputs * 8; i += F::kThreads)
    if (i / 8 < count && i % 8 * 2 < blocks)
      copy16(to + F::kValues + i / 8 * F::kLine + i % 8 * 16,
             o.values + (first + i / 8) * o.k + step * F::kStep + i % 8 * 16);
  for (int i = static_cast<int>(threadIdx.x); i < F::kGroups * F::kInputs; i += F::kThreads) {
    if (i % F::kInputs >= count || i / F::kInputs >= blocks * 8 / F::kGroup) continue;
    const std::int64_t from = (step * F::kGroups + i / F::kInputs) * o.rows + first + i % F::kInputs;
    copy4(to + F::kSteps + i * 4, o.steps + from);
    copy4(to + F::kSums + i * 4, o.sums + from);
  }
}

/// acc += one group of the stage; tile and col: the beginning of the warp's part.
template <class F>
__device__ void multiply_group(float (&acc)[F::kTiles][F::kCols][4], const std::byte* stage, int group, int tile,
                               int col, bool offsets, int lane) {
  const int g = lane / 4, t = lane % 4;
  constexpr int kSteps = F::kGroup / 32;
  unsigned a[F::kTiles][kSteps][4];
  float2 scale[F::kTiles], offset[F::kTiles];
#pragma unroll
  for (int i = 0; i < F::kTiles; ++i) {
#pragma unroll
    for (int m = 0; m < kSteps; ++m)
      unpack(a[i][m], *reinterpret_cast<const uint2*>(
                          stage + (tile + i) * F::kTileBytes +
                          (((group * kSteps + m) * 4 + t) * static_cast<int>(kTileRows) + 2 * g) * 4));
    const std::byte* at =
        stage + F::kScales + (tile + i) * F::kScaleBytes + (group * static_cast<int>(kTileRows) + 2 * g) * 2;
    scale[i] = widen_pair(*reinterpret_cast<const unsigned*>(at));
    offset[i] = offsets ? widen_pair(*reinterpret_cast<const unsigned*>(at + F::kOffsets - F::kScales)) : float2{0, 0};
  }
#pragma unroll
  for (int j = 0; j < F::kCols; ++j) {
    const int at = group * F::kInputs + col + j * 8 + 2 * t;
    const float2 step = *reinterpret_cast<const float2*>(stage + F::kSteps + at * 4);
    const int2 sums = *reinterpret_cast<const int2*>(stage + F::kSums + at * 4);
    int c[F::kTiles][4];
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
      c[i][0] = c[i][2] = kMagicBits - 8 * sums.x, c[i][1] = c[i][3] = kMagicBits - 8 * sums.y;
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
      const int2 b = *reinterpret_cast<const int2*>(stage + F::kValues + (col + j * 8 + g) * F::kLine +
                                                    ((group * kSteps + m) * 4 + t) * 8);
#pragma unroll
      for (int i = 0; i < F::kTiles; ++i) mma(c[i], a[i][m], b);
    }
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        acc[i][j][r] = ::fmaf(__int_as_float(c[i][r]) - kMagic,
                              (r < 2 ? scale[i].x : scale[i].y) * (r % 2 ? step.y : step.x), acc[i][j][r]);
        if (offsets)
          acc[i][j][r] =
              ::fmaf(r < 2 ? offset[i].x : offset[i].y,
                     r % 2 ? step.y * static_cast<float>(sums.y) : step.x * static_cast<float>(sums.x), acc[i][j][r]);
      }
  }
}

template <class F> __global__ void __launch_bounds__(F::kThreads) multiply_many(const __grid_constant__ Product o) {
  extern __shared__ __align__(16) std::byte memory[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row = std::int64_t{blockIdx.x} * F::kRows, first = std::int64_t{blockIdx.y} * F::kInputs,
                     steps = (o.k + F::kStep - 1) / F::kStep;
  const int count = static_cast<int>(o.rows - first < F::kInputs ? o.rows - first : F::kInputs);
  const int tile = warp / F::kColWarps * F::kTiles, col = warp % F::kColWarps * F::kCols * 8;
  const auto blocks = [&](std::int64_t i) {
    return static_cast<int>(o.k / 8 - i * F::kBlocks < F::kBlocks ? o.k / 8 - i * F::kBlocks : F::kBlocks);
  };
  const auto fetch = [&](std::int64_t i) {
    if (i < steps) {
      std::byte* to = memory + i % F::kStages * F::kStageBytes;
      fetch_weights<F>(to, o, row, i, blocks(i));
      fetch_values<F>(to, o, first, count, i, blocks(i));
    }
    close_copies();
  };
  let_next_begin();
  await_previous();
  float acc[F::kTiles][F::kCols][4] = {};
  for (int i = 0; i < F::kStages - 1; ++i) fetch(i);
  for (std::int64_t i = 0; i < steps; ++i) {
    await_copies<F::kStages - 2>();
    __syncthreads();  // all copies of step i have arrived, and all threads have read step i - 1
    fetch(i + F::kStages - 1);
    const std::byte* stage = memory + i % F::kStages * F::kStageBytes;
#pragma unroll
    for (int group = 0; group < F::kGroups; ++group) {
      if (group >= blocks(i) * 8 / F::kGroup) break;
      multiply_group<F>(acc, stage, group, tile, col, o.offset != nullptr, lane);
    }
  }
#pragma unroll
  for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
    for (int j = 0; j < F::kCols; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const std::int64_t n = row + (tile + i) * kTileRows + lane / 4 * 2 + r / 2;
        const int m = col + j * 8 + lane % 4 * 2 + r % 2;
        if (n < o.n && m < count) put(o, acc[i][j][r], first + m, n);
      }
}

}  // namespace hpcdl::cuda::quant4
