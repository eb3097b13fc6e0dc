#pragma once
// Many rows of x on Hopper: warpgroup products of signed bytes. A block computes 64 kRowSets rows of W by kCols
// kColSets of x; a warpgroup computes 64 by kCols of them over every kSplit-th step of 128 inputs. One warp loads
// weights and rounded inputs through a ring; warpgroups unpack weights in registers, 16 (q - 8) per byte, so that each
// group of inputs takes one exact integer sum, and scale it into their float sums while others multiply. If there are
// few tiles, the blocks of a cluster divide the steps.
//
// The rounded inputs are stored as the products read them: for each step, the rows' 128 bytes consecutively, in the
// order of operand A (place_of_input) and swizzled, so that a tile is one piece of memory. K is a multiple of 128, N of
// 16.

#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma_bytes.cuh"
#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

inline constexpr int kWideStep = 128;  // inputs

/// The place of the rounded inputs 4 i .. 4 i + 3 of a row; i is even or odd as their weights are low or high nibbles.
__device__ inline std::int64_t place_of_input(std::int64_t rows, std::int64_t row, std::int64_t at) {
  const std::int64_t step = at / kWideStep;
  const int in_step = static_cast<int>(at % kWideStep),
            byte = in_step / 32 * 32 + in_step % 32 / 8 * 4 + in_step % 8 / 4 * 16;
  return (step * rows + row) * kWideStep + (byte ^ static_cast<int>(row % 8) * 16);
}

template <int kGroup_, int kRowSets_, int kColSets_, int kSplit_, int kCols_, int kCluster_> struct Wide {
  static constexpr int kGroup = kGroup_, kRowSets = kRowSets_, kColSets = kColSets_, kSplit = kSplit_, kCols = kCols_,
                       kCluster = kCluster_;
  static constexpr int kWarpgroups = kRowSets * kColSets * kSplit, kConsumers = kWarpgroups * 128,
                       kThreads = kConsumers + kWarp;
  static constexpr int kTile = static_cast<int>(kTileRows), kBlockTiles = 4 * kRowSets, kRows = 64 * kRowSets,
                       kInputs = kCols * kColSets;
  static constexpr int kGroups = kWideStep / kGroup, kTileBytes = kWideStep / 2 * kTile,
                       kScaleBytes = kGroups * kTile * 2;
  static constexpr int kWeights = kInputs * kWideStep, kScales = kWeights + kBlockTiles * kTileBytes,
                       kOffsets = kScales + kBlockTiles * kScaleBytes, kSteps = kOffsets + kBlockTiles * kScaleBytes,
                       kSums = kSteps + kGroups * kInputs * 4,
                       kStageBytes = (kSums + kGroups * kInputs * 4 + 1023) / 1024 * 1024;
  static constexpr int kLine = kRows + 4;  // of sums: a gap against bank conflicts
  static constexpr int kPart = kInputs * kLine, kPartBytes = kSplit * kPart * 4;
  static constexpr int kStages = (216 << 10) / kStageBytes < 12 ? (216 << 10) / kStageBytes : 12;
  // What the copy engine brings is read by products, what threads copy by loads.
  using Steps = Channel<kStages, Warps<4 * kRowSets * kColSets>, Reads::ordinary, 1, Threads<1 + kWarp>>;
  using Memory = Arena<Room<std::byte, (kStages * kStageBytes > kPartBytes ? kStages * kStageBytes : kPartBytes), 1024>,
                       Stages<Steps>>;
  static constexpr int kSharedBytes = Memory::kBytes;
};

#if HPCDL_SM90A

__device__ inline float load_from(unsigned rank, const float* p) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_at(rank, p)));
  return v;
}

template <class F> struct WideBlock {
  const Product& o;
  std::byte* ring;
  typename F::Steps stages;
  std::int64_t row, first, begin, end;  // rows of W and of x, first row of each; steps
  int tiles, count;                     // tiles of 16 rows of W, rows of x

  __device__ std::byte* stage(int i) const { return ring + i * F::kStageBytes; }

  /// Run by a warp. The copy engine loads only the values of inputs, which are one piece; with pieces of a kilobyte or
  /// less it is slower than the products.
  __device__ void produce(int lane) const {
    constexpr int kUnits = F::kTileBytes / 16, kScaleUnits = F::kScaleBytes / 16;
    const std::int64_t scale = scale_at(row, o.groups) + begin * F::kGroups * F::kTile,
                       of_inputs = begin * F::kGroups * o.rows + first + lane;
    const std::uint8_t* packed = o.packed + packed_at(row, o.k) + begin * F::kTileBytes;
    const bf16 *scales = o.scale + scale, *offsets = o.offset ? o.offset + scale : nullptr;
    const std::int8_t* values = o.values + (begin * o.rows + first) * kWideStep;
    const float* steps = o.steps + of_inputs;
    const std::int32_t* totals = o.sums + of_inputs;

    const auto fetch_aligned = [&](std::byte* to) {
#pragma unroll
      for (int i = 0; i < F::kBlockTiles; ++i)
#pragma unroll
        for (int unit = 0; unit < kUnits; unit += kWarp)
          if (i < tiles)
            copy16(to + F::kWeights + i * F::kTileBytes + (unit + lane) * 16,
                   packed + packed_at(i * F::kTile, o.k) + (unit + lane) * 16);
#pragma unroll
      for (int i = 0; i < F::kBlockTiles * kScaleUnits; i += kWarp) {
        const int tile = (i + lane) / kScaleUnits, unit = (i + lane) % kScaleUnits;
        if (tile >= tiles) continue;
        const std::int64_t from = scale_at(tile * F::kTile, o.groups) + unit * 8;
        copy16(to + F::kScales + (i + lane) * 16, scales + from);
        if (offsets) copy16(to + F::kOffsets + (i + lane) * 16, offsets + from);
      }
    };
    // Tensors of a mapped file are not aligned.
    const auto fetch_bytes = [&](std::byte* to) {
      constexpr int kWords = F::kTileBytes / 4, kValues = F::kScaleBytes / 2;
      for (int i = lane; i < tiles * kWords; i += kWarp) {
        const std::uint8_t* p = packed + packed_at(i / kWords * F::kTile, o.k) + i % kWords * 4;
        reinterpret_cast<unsigned*>(to + F::kWeights)[i] =
            p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;
      }
      for (int i = lane; i < tiles * kValues; i += kWarp) {
        const std::int64_t from = scale_at(i / kValues * F::kTile, o.groups) + i % kValues;
        reinterpret_cast<bf16*>(to + F::kScales)[i] = scales[from];
        if (offsets) reinterpret_cast<bf16*>(to + F::kOffsets)[i] = offsets[from];
      }
      __threadfence_block();
    };
    const auto fetch_weights = [&](int at) {
      if (o.aligned) fetch_aligned(stage(at));
      else fetch_bytes(stage(at));
      packed += F::kTileBytes, scales += F::kGroups * F::kTile;
      if (offsets) offsets += F::kGroups * F::kTile;
    };
    // Steps and sums may begin at any address, and are copied word by word.
    const auto fetch_inputs = [&](int at) {
      if (lane == 0) {
        const auto bytes = static_cast<unsigned>(count * kWideStep);
        bulk_load(stage(at), values, bytes, stages.expect(Slot{at, 0}, bytes));
      }
      values += o.rows * kWideStep;
#pragma unroll
      for (int group = 0; group < F::kGroups; ++group, steps += o.rows, totals += o.rows)
#pragma unroll
        for (int col = 0; col < F::kInputs; col += kWarp) {
          if (col + lane >= count) continue;
          std::byte* to = stage(at) + F::kSteps + (group * F::kInputs + col + lane) * 4;
          copy4(to, steps + col);
          if (offsets) copy4(to + (F::kSums - F::kSteps), totals + col);
        }
      Mbarriers::arrive_with_copies(stages.full + at);
    };
    if (!o.constant) await_previous();
    const int all = static_cast<int>(end - begin), ahead = all < F::kStages ? all : F::kStages;
    for (int i = 0; i < ahead; ++i) fetch_weights(i);
    if (o.constant) await_previous();
    for (int i = 0; i < ahead; ++i) fetch_inputs(i);
    Ring<F::kStages> at;  // the first stages are empty without a wait
    for (int i = ahead; i < all; ++i, at.next()) {
      stages.wait_empty(at);
      fetch_weights(at.stage), fetch_inputs(at.stage);
    }
    __syncwarp();
    named_sync(1, F::kThreads);  // together with the consumers: compute-sanitizer counts barriers, and reports a race
                                 // if one warp skips a barrier
  }

  /// sums += one group of a stage. warp: of the warpgroup; row_set, col_set: its part of the block.
  __device__ void multiply_group(float (&sums)[F::kCols / 2], const std::byte* from, int group, int row_set,
                                 int col_set, int warp, int lane) const {
    const int g = lane / 4, t = lane % 4, tile = row_set * 4 + warp;
    const std::byte* weights =
        from + F::kWeights + tile * F::kTileBytes + group * (F::kGroup / 2 * F::kTile) + t * (F::kTile * 4) + g * 8;
    unsigned a[F::kGroup / 32][4];
#pragma unroll
    for (int m = 0; m < F::kGroup / 32; ++m) {
      const uint2 w = *reinterpret_cast<const uint2*>(weights + m * (16 * F::kTile));
      a[m][0] = (w.x << 4 & 0xf0f0f0f0u) ^ 0x80808080u, a[m][1] = (w.y << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
      a[m][2] = (w.x & 0xf0f0f0f0u) ^ 0x80808080u, a[m][3] = (w.y & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    int c[F::kCols / 2];
    const std::uint64_t b = wgmma_descriptor<Major::k>(from + col_set * (F::kCols * kWideStep)) +
                            static_cast<std::uint64_t>(group * F::kGroup >> 4);
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < F::kGroup / 32; ++m) wgmma(c, a[m], b + m * kStepK, m > 0);
    wgmma_commit();
    const std::byte* at = from + F::kScales + tile * F::kScaleBytes + (group * F::kTile + 2 * g) * 2;
    float2 scale = widen_pair(*reinterpret_cast<const unsigned*>(at)), offset{0, 0};
    scale.x *= 0x1p-4f, scale.y *= 0x1p-4f;
    if (o.offset) offset = widen_pair(*reinterpret_cast<const unsigned*>(at + (F::kOffsets - F::kScales)));
    const std::byte* of_input = from + F::kSteps + (group * F::kInputs + col_set * F::kCols + 2 * t) * 4;
    wgmma_wait<0>();
    wgmma_pin(c);
#pragma unroll
    for (int j = 0; j < F::kCols / 8; ++j) {
      const float2 step = *reinterpret_cast<const float2*>(of_input + j * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& to = sums[j * 4 + i];
        to = ::fmaf(static_cast<float>(c[j * 4 + i]), (i < 2 ? scale.x : scale.y) * (i % 2 ? step.y : step.x), to);
      }
      if (o.offset) {
        const int2 sum = *reinterpret_cast<const int2*>(of_input + (F::kSums - F::kSteps) + j * 32);
        const float2 total{step.x * static_cast<float>(sum.x), step.y * static_cast<float>(sum.y)};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[j * 4 + i] = ::fmaf(i < 2 ? offset.x : offset.y, i % 2 ? total.y : total.x, sums[j * 4 + i]);
      }
    }
  }
  __device__ void consume(int warp, int lane) const {
    const int warpgroup = warp / 4, split = warpgroup % F::kSplit, set = warpgroup / F::kSplit,
              row_set = set % F::kRowSets, col_set = set / F::kRowSets;
    float sums[F::kCols / 2] = {};
    Ring<F::kStages> at;
    at.skip(split);
    for (std::int64_t step = begin + split; step < end; step += F::kSplit, at.skip(F::kSplit)) {
      stages.get(at);
#pragma unroll 1
      for (int group = 0; group < F::kGroups; ++group)
        multiply_group(sums, stage(at.stage), group, row_set, col_set, warp % 4, lane);
      stages.done(at.stage);
    }
    named_sync(1, F::kThreads);  // no thread reads the ring any more
    auto* part = reinterpret_cast<float*>(ring) + split * F::kPart + row_set * 64 + warp % 4 * F::kTile + lane / 4 * 2;
#pragma unroll
    for (int j = 0; j < F::kCols / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float2*>(part + (col_set * F::kCols + j * 8 + lane % 4 * 2 + i) * F::kLine) = {
            sums[j * 4 + i], sums[j * 4 + 2 + i]};
  }
  /// Adds the sums of all warpgroups, and of the blocks of the cluster, in order; each block finishes its share of the
  /// results.
  __device__ void finish(int rank) const {
    constexpr int kShare = F::kRows * F::kInputs / F::kCluster;
    const auto* parts = reinterpret_cast<const float*>(ring);
    for (int i = rank * kShare + static_cast<int>(threadIdx.x); i < (rank + 1) * kShare; i += F::kThreads) {
      const int in_tile = i % F::kRows, col = i / F::kRows;
      if (row + in_tile >= o.n || col >= count) continue;
      float v = 0;
#pragma unroll
      for (int block = 0; block < F::kCluster; ++block)
#pragma unroll
        for (int split = 0; split < F::kSplit; ++split) {
          const float* p = parts + split * F::kPart + col * F::kLine + in_tile;
          v += F::kCluster == 1 ? *p : load_from(static_cast<unsigned>(block), p);
        }
      if (o.plain) cuda::put(o.y, o.y_dtype, (first + col) * o.y_stride + row + in_tile, v);
      else put(o, v, first + col, row + in_tile);
    }
  }
};

#endif

template <class F> __global__ void __launch_bounds__(F::kThreads, 1) multiply_wide(const __grid_constant__ Product o) {
#if HPCDL_SM90A
  const typename F::Memory memory;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, rank = static_cast<int>(blockIdx.x) % F::kCluster;
  const std::int64_t row = std::int64_t{blockIdx.x / F::kCluster} * F::kRows,
                     first = std::int64_t{blockIdx.y} * F::kInputs, steps = o.k / kWideStep;
  const std::int64_t tiles = (o.n - row + F::kTile - 1) / F::kTile, left = o.rows - first;
  memory.start();
  let_next_begin();
  const WideBlock<F> block{o,
                           memory.template part<0>(),
                           memory.template part<1>(),
                           row,
                           first,
                           steps * rank / F::kCluster,
                           steps * (rank + 1) / F::kCluster,
                           static_cast<int>(tiles < F::kBlockTiles ? tiles : F::kBlockTiles),
                           static_cast<int>(left < F::kInputs ? left : F::kInputs)};
  roles<Producers<0, 1, kWarp>, Consumers<F::kWarpgroups, 0>>([&](int) { block.produce(lane); },
                                                              [&](int) { block.consume(warp_index(), lane); });
  __syncwarp();
  if constexpr (F::kCluster > 1) cluster_sync();
  else __syncthreads();
  block.finish(rank);
  if constexpr (F::kCluster > 1) cluster_sync();  // no block may leave while others read its sums
#endif
}

}  // namespace hpcdl::cuda::quant4
