#include "hpcdl/ops/int4_linear/int4_widened.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <span>
#include <utility>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/int4_linear/int4_device.cuh"

// A block computes kRows rows of W by kCols of x. One warp keeps the copy engine busy, 64 inputs at a time;
// warpgroups widen weights to bf16 in registers, as operand A, while their previous products run. Exact products are
// those of the weights' four bits alone, which bf16 can hold; the sums of a group are multiplied by its scale in f32.
// If there are few tiles, the blocks of a cluster divide K and add up their sums in order.

namespace hpcdl::cuda {
namespace {

using namespace quant4;

constexpr int kMostSplits = 8;
constexpr int kHalfDepths = 2;  // of 16 inputs in half a step, the smallest group

template <int kRowSets_, int kCols_, bool kExact_ = false> struct Widened {
  static constexpr bool kExact = kExact_;
  static constexpr int kRowSets = kRowSets_, kCols = kCols_, kConsumers = kRowSets * 128, kThreads = kConsumers + 128;
  static constexpr int kResident = kRowSets == 2 && kCols <= 64 && !kExact ? 2 : 1;  // blocks per multiprocessor
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = kResident == 2 ? 96 : kRowSets == 3 ? 152 : 232;
  static constexpr int kTile = static_cast<int>(kTileRows), kTiles = 4 * kRowSets, kRows = kTiles * kTile;
  static constexpr int kStep = 64, kBlocks = kStep / 8, kTileBytes = kStep / 2 * kTile;
  static constexpr int kScaleBytes = 2 * kTile * 2;  // of a tile and a step, in groups of 32
  static constexpr int kInputBytes = kCols * kStep * 2, kScales = kInputBytes + kTiles * kTileBytes,
                       kOffsets = kScales + kTiles * kScaleBytes;
  // The last tile of W, if it has fewer rows: weights, scales, offsets.
  static constexpr int kLast = kOffsets + kTiles * kScaleBytes, kLastScales = kLast + kTileBytes,
                       kLastOffsets = kLastScales + kScaleBytes,
                       kStageBytes = (kLastOffsets + kScaleBytes + 1023) / 1024 * 1024;
  static constexpr int kLine = kRows + 4;  // of sums: a gap against bank conflicts
  static constexpr int kMostStages = ((216 << 10) / kResident - 2048) / kStageBytes,
                       kStages = kMostStages < 16 ? kMostStages : 16;
  // Loads of weights are over when the products that take them are; a last tile adds the arrivals of a warp's copies.
  using Steps = Channel<kStages, Warps<4 * kRowSets>, Reads::ordinary>;
  using Memory = Arena<Room<std::byte, kStages * kStageBytes, 1024>, Stages<Steps>>;
  static constexpr int kSharedBytes = Memory::kBytes;
  static_assert(kCols * kLine * 4 <= kStages * kStageBytes && kBlocks * 4 == kWarp);
};

struct WidenedMaps {
  TensorMap x, packed, scale, offset;  // tiles of W: a row each
};

#if HPCDL_SM90A

__device__ float4 load_from(unsigned rank, const float* p) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared_address(p)), "r"(rank)
      : "memory");
  return v;
}

/// Two neighbouring weights, byte-wise in the low nibbles of two bytes of w chosen by `select`, as bf16: 128 + q, then
/// (q - 8) exactly.
__device__ inline __nv_bfloat162 bits_pair(unsigned w, unsigned select) {
  const unsigned v = __byte_perm(w, 0x43434343u, select) & 0xff0fff0fu;
  const auto eights = __nv_bfloat162{__ushort_as_bfloat16(0x4308), __ushort_as_bfloat16(0x4308)};
  return __hsub2(reinterpret_cast<const __nv_bfloat162&>(v), eights);
}
/// The same times scale plus offset, rounded once.
template <bool kOffsets>
__device__ unsigned widened_pair(unsigned w, unsigned select, __nv_bfloat162 scale, __nv_bfloat162 offset) {
  const __nv_bfloat162 q = bits_pair(w, select);
  const __nv_bfloat162 r = kOffsets ? __hfma2(q, scale, offset) : __hmul2(q, scale);
  return reinterpret_cast<const unsigned&>(r);
}

template <class F> struct WidenedBlock {
  const Product& o;
  const WidenedMaps& maps;
  std::byte* ring;
  typename F::Steps stages;
  std::int64_t row, first;    // of W and of x
  int begin, end;             // steps
  int count;                  // rows of x
  int last_tile;              // the tile of W that has fewer rows, -1 if none has
  int group, groups_of_step;  // inputs per scale; scales per row and step, 1 or 2

  __device__ std::byte* stage(int i) const { return ring + i * F::kStageBytes; }

  /// Elements beyond the matrices become 0.
  __device__ void fetch_weights(int at, int step, int lane) const {
    const int of_scales = groups_of_step * F::kTile * 2 * F::kTiles;
    if (lane == 0) {
      std::byte* to = stage(at);
      const int tile = static_cast<int>(row / F::kTile), scale = step * F::kStep / group * F::kTile;
      Barrier* const full = stages.expect(
          Slot{at, 0},
          static_cast<unsigned>(F::kInputBytes + F::kTiles * F::kTileBytes + of_scales * (o.offset ? 2 : 1)));
      tma_load(to + F::kInputBytes, maps.packed, full, step * (F::kTileBytes / 4), tile);
      tma_load(to + F::kScales, maps.scale, full, scale, tile);
      if (o.offset) tma_load(to + F::kOffsets, maps.offset, full, scale, tile);
    }
    if (last_tile >= 0) fetch_last(stage(at), step, lane), Mbarriers::arrive_with_copies(stages.full + at);
  }
  __device__ void fetch_inputs(int at, int step, int lane) const {
    if (lane == 0) tma_load(stage(at), maps.x, stages.full + at, step * F::kStep, static_cast<int>(first));
  }
  __device__ void fetch_last(std::byte* to, int step, int lane) const {
    const std::int64_t at = row + last_tile * F::kTile, block = std::int64_t{step} * F::kBlocks,
                       of_group = std::int64_t{step} * F::kStep / group;
    const int rows = static_cast<int>(o.n - at);
    const std::uint8_t* from = o.packed + packed_at(at, o.k) + block * rows * 4;
#pragma unroll
    for (int i = 0; i < F::kBlocks * F::kTile; i += kWarp) {
      const int in_step = (i + lane) / F::kTile, r = (i + lane) % F::kTile;
      const bool there = block + in_step < o.k / 8 && r < rows;
      copy4(to + F::kLast + (i + lane) * 4, from + (there ? in_step * rows + r : 0) * 4, there);
    }
    const int part = lane / F::kTile, r = lane % F::kTile;
    if (part >= groups_of_step) return;
    const bool there = of_group + part < o.groups && r < rows;
    const std::int64_t place = scale_at(at, o.groups) + (of_group + part) * rows + r;
    reinterpret_cast<bf16*>(to + F::kLastScales)[lane] = there ? o.scale[place] : bf16{};
    if (o.offset) reinterpret_cast<bf16*>(to + F::kLastOffsets)[lane] = there ? o.offset[place] : bf16{};
    __threadfence_block();
  }
  /// Run by a warp.
  __device__ void produce(int lane) const {
    if (!o.constant) await_previous();
    const int all = end - begin, ahead = all < F::kStages ? all : F::kStages;
    for (int i = 0; i < ahead; ++i) fetch_weights(i, begin + i, lane);
    if (o.constant) await_previous();
    for (int i = 0; i < ahead; ++i) fetch_inputs(i, begin + i, lane);
    Ring<F::kStages> at;
    for (int i = ahead; i < all; ++i, at.next()) {
      stages.wait_empty(at);
      fetch_weights(at.stage, begin + i, lane), fetch_inputs(at.stage, begin + i, lane);
    }
  }

  /// Where a warp finds the weights, scales and offsets of one of its tiles in a stage. Lane (g, t) has rows 2g and
  /// 2g + 1, the pair t of each block of eight.
  struct Place {
    int weights, scales, offsets;
  };
  __device__ Place place(int tile, int lane) const {
    const int g = lane / 4, scale = tile * groups_of_step * F::kTile * 2 + g * 4;
    if (tile == last_tile) return {F::kLast + g * 8, F::kLastScales + g * 4, F::kLastOffsets + g * 4};
    return {F::kInputBytes + tile * F::kTileBytes + g * 8, F::kScales + scale, F::kOffsets + scale};
  }
  /// What a lane needs of a step's weights, scales and offsets.
  struct Raw {
    uint2 weights[F::kBlocks];
    unsigned scales[2], offsets[2];
  };
  template <bool kOffsets> __device__ void bring(Raw& to, const std::byte* from, Place at) const {
    const auto pair_at = [&](int place) { return *reinterpret_cast<const unsigned*>(from + place); };
#pragma unroll
    for (int i = 0; i < F::kBlocks; ++i)
      to.weights[i] = *reinterpret_cast<const uint2*>(from + at.weights + i * (F::kTile * 4));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int apart = (half & (groups_of_step - 1)) * (F::kTile * 2);
      to.scales[half] = pair_at(at.scales + apart);
      if constexpr (kOffsets) to.offsets[half] = pair_at(at.offsets + apart);
    }
  }
  /// Operand A of a step.
  template <bool kOffsets> __device__ void widen(unsigned (&a)[4][4], const Raw& from, int t) const {
    const auto twice = [](unsigned pair, bool second) {
      const unsigned v = __byte_perm(pair, 0, second ? 0x3232 : 0x1010);
      return reinterpret_cast<const __nv_bfloat162&>(v);
    };
    const unsigned shift = t / 2 * 4, select = t % 2 ? 0x4342u : 0x4140u;
#pragma unroll
    for (int i = 0; i < F::kBlocks; ++i)
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const unsigned w = row == 0 ? from.weights[i].x : from.weights[i].y;
        const auto scale = twice(from.scales[i / 4], row == 1);
        const auto offset = kOffsets ? twice(from.offsets[i / 4], row == 1) : scale;
        a[i / 2][i % 2 * 2 + row] = widened_pair<kOffsets>(w >> shift, select, scale, offset);
      }
  }
  /// While the products of a step run, the weights of the next one are widened.
  template <bool kOffsets> __device__ void consume(int warp, int lane) const {
    float sums[F::kCols / 2];
    unsigned a[2][4][4];
    Raw raw;
    const Place at = place(warp, lane);
    Ring<F::kStages> now, next;
    int before = -1;
    const auto get = [&] {
      stages.get(next);
      bring<kOffsets>(raw, stage(next.stage), at);
      next.next();
    };
    const auto multiply = [&](unsigned (&operand)[4][4], int step) {
      widen<kOffsets>(operand, raw, lane % 4);
      const std::uint64_t b = wgmma_descriptor<Major::k>(stage(now.stage));
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < 4; ++m) wgmma<bf16, Major::k>(sums, operand[m], b + m * kStepK, step > begin || m > 0);
      wgmma_commit();
      if (step + 1 < end) get();
      wgmma_wait<1>();  // the products of the previous step, which read the other operand A
      if (before >= 0) stages.done(before);
      before = now.stage;
      now.next();
    };
    get();
    int step = begin;
    for (; step + 1 < end; step += 2) multiply(a[0], step), multiply(a[1], step + 1);
    if (step < end) multiply(a[0], step);
    wgmma_wait<0>();
    wgmma_pin(sums);
    leave([&](int i) { return sums[i]; }, warp, lane);
  }

  /// Half a step of weights without scales and offsets, as operand A; their scales; and their offsets, which are multiplied
  /// by x like weights, since bf16 holds them.
  struct Half {
    unsigned bits[kHalfDepths][4], offsets;
    float2 scale;
  };
  template <bool kOffsets> __device__ void bring(Half& to, const std::byte* from, Place at, int half, int t) const {
    uint2 w[F::kBlocks / 2];
#pragma unroll
    for (int i = 0; i < F::kBlocks / 2; ++i)
      w[i] = *reinterpret_cast<const uint2*>(from + at.weights + (half * (F::kBlocks / 2) + i) * (F::kTile * 4));
    const auto pair_at = [&](int place) {
      return *reinterpret_cast<const unsigned*>(from + place + (half & (groups_of_step - 1)) * (F::kTile * 2));
    };
    to.scale = widen_pair(pair_at(at.scales));
    if constexpr (kOffsets) to.offsets = pair_at(at.offsets);
    const unsigned shift = t / 2 * 4, select = t % 2 ? 0x4342u : 0x4140u;
#pragma unroll
    for (int i = 0; i < F::kBlocks / 2; ++i) {
      const __nv_bfloat162 upper = bits_pair(w[i].x >> shift, select), lower = bits_pair(w[i].y >> shift, select);
      to.bits[i / 2][i % 2 * 2] = reinterpret_cast<const unsigned&>(upper);
      to.bits[i / 2][i % 2 * 2 + 1] = reinterpret_cast<const unsigned&>(lower);
    }
  }
  /// The columns of x come in chunks. While the products of a chunk run, those of the one before are scaled. All products
  /// of a step are waited for in it: the compiler lets products run beside others only where it sees both ends.
  template <bool kOffsets> __device__ void consume_exact(int warp, int lane) const {
    constexpr int kChunk = 64, kChunks = F::kCols / kChunk, kGroups = 2 * kChunks;
    constexpr std::uint64_t kNextChunk = kChunk * F::kStep * 2 >> 4;
    constexpr bool kAlone = kOffsets && kChunks == 1;  // neighbouring groups of products have the same sums
    float sums[kChunks][kChunk / 2] = {}, part[2][kChunk / 2];
    Half halves[2];
    const Place at = place(warp, lane);
    Ring<F::kStages> now, next;
    const auto multiply = [&](int i, std::uint64_t b) {
      const Half& half = halves[i / kChunks];
      const int chunk = i % kChunks;
      [[maybe_unused]] const unsigned upper = __byte_perm(half.offsets, 0, 0x1010),
                                      lower = __byte_perm(half.offsets, 0, 0x3232);
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < kHalfDepths; ++m) {
        const std::uint64_t depth =
            b + static_cast<std::uint64_t>(chunk) * kNextChunk + (i / kChunks * kHalfDepths + m) * kStepK;
        wgmma<bf16, Major::k>(part[i % 2], half.bits[m], depth, m > 0);
        if constexpr (kOffsets) wgmma<bf16, Major::k>(sums[chunk], {upper, lower, upper, lower}, depth, true);
      }
      wgmma_commit();
    };
    const auto scale = [&](int i) {
      const float2 by = halves[i / kChunks].scale;
      wgmma_pin(part[i % 2]);
      if constexpr (kOffsets) wgmma_pin(sums[i % kChunks]);
#pragma unroll
      for (int k = 0; k < kChunk / 2; ++k) {
        float& sum = sums[i % kChunks][k];
        sum = ::fmaf(part[i % 2][k], k / 2 % 2 ? by.y : by.x, sum);
      }
    };
    stages.get(next);
    bring<kOffsets>(halves[0], stage(next.stage), at, 0, lane % 4);
    for (int step = begin; step < end; ++step, now.next()) {
      const std::byte* from = stage(now.stage);
      const std::uint64_t b = wgmma_descriptor<Major::k>(from);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (kAlone && i > 0) wgmma_wait<0>(), scale(i - 1);
        multiply(i, b);
        if (!kAlone && i > 0) wgmma_wait<1>(), scale(i - 1);
        if (i == 0) bring<kOffsets>(halves[1], from, at, 1, lane % 4);
      }
      if (next.next(); step + 1 < end) {
        stages.get(next);
        bring<kOffsets>(halves[0], stage(next.stage), at, 0, lane % 4);
      }
      wgmma_wait<0>();
      scale(kGroups - 1);
      stages.done(now.stage);
    }
    leave([&](int i) { return sums[i / (kChunk / 2)][i % (kChunk / 2)]; }, warp, lane);
  }

  /// Writes a warp's sums to where finish() reads them.
  template <class Sums> __device__ void leave(const Sums& sums, int warp, int lane) const {
    named_sync(1, F::kConsumers);  // no thread reads the ring any more
    float* part = reinterpret_cast<float*>(ring) + warp * F::kTile + lane / 4 * 2 + lane % 4 * 2 * F::kLine;
#pragma unroll
    for (int j = 0; j < F::kCols / 2; j += 4)
#pragma unroll
      for (int col = 0; col < 2; ++col)
        *reinterpret_cast<float2*>(part + (j * 2 + col) * F::kLine) = {sums(j + col), sums(j + 2 + col)};
  }
  /// Adds the sums of the blocks of the cluster in order; each block finishes its share of the results.
  __device__ void finish(int rank, int splits, bool pairs) const {
    const auto* parts = reinterpret_cast<const float*>(ring);
    constexpr int kQuads = F::kRows / 4;
    for (int i = rank * F::kConsumers + static_cast<int>(threadIdx.x); i < kQuads * F::kCols;
         i += splits * F::kConsumers) {
      const int quad = i % kQuads * 4, col = i / kQuads;
      const std::int64_t at = row + quad;
      if (at >= o.n || col >= count) continue;
      const float* from = parts + col * F::kLine + quad;
      float v[4] = {};
      for (int block = 0; block < splits; ++block) {
        const float4 of =
            block == rank ? *reinterpret_cast<const float4*>(from) : load_from(static_cast<unsigned>(block), from);
        v[0] += of.x, v[1] += of.y, v[2] += of.z, v[3] += of.w;
      }
      if (pairs) {
        auto* to = reinterpret_cast<uint2*>(static_cast<bf16*>(o.y) + (first + col) * o.y_stride + at);
        const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]), high = __floats2bfloat162_rn(v[2], v[3]);
        *to = {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (at + j < o.n) put(o, v[j], first + col, at + j);
    }
  }
};

#endif

/// `columns`: blocks that divide the rows of x. `pairs`: results are stored four at a time.
template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kResident)
    widened_kernel(const __grid_constant__ Product o, const __grid_constant__ WidenedMaps maps, int columns, int splits,
                   bool pairs) {
#if HPCDL_SM90A
  const typename F::Memory memory;
  const auto stages = memory.template part<1>();
  const int warp = warp_index(), lane = static_cast<int>(threadIdx.x) % kWarp,
            place = static_cast<int>(blockIdx.x) / splits, rank = static_cast<int>(blockIdx.x) % splits;
  const std::int64_t row = std::int64_t{place / columns} * F::kRows, first = std::int64_t{place % columns} * F::kCols,
                     left = o.rows - first;
  const int steps = static_cast<int>((o.k + F::kStep - 1) / F::kStep), group = static_cast<int>(o.k / o.groups),
            last_tile = o.n % F::kTile != 0 && o.n - row < F::kRows ? static_cast<int>((o.n - row) / F::kTile) : -1;
  const auto init = [&] {
    for (int i = 0; i < F::kStages; ++i)
      Mbarriers::init(stages.full + i, last_tile < 0 ? 1 : 1 + kWarp),
          Mbarriers::init(stages.empty(i), 4 * F::kRowSets);
  };
  start_block(init, maps.x, maps.packed, maps.scale);
  let_next_begin();
  const WidenedBlock<F> block{o,
                              maps,
                              memory.template part<0>(),
                              stages,
                              row,
                              first,
                              steps * rank / splits,
                              steps * (rank + 1) / splits,
                              static_cast<int>(left < F::kCols ? left : F::kCols),
                              last_tile,
                              group,
                              group < F::kStep ? F::kStep / group : 1};
  roles<Producers<F::kProducerRegisters, 1, kWarp>, Consumers<F::kRowSets, F::kConsumerRegisters>>(
      [&](int) {
        block.produce(lane);
        await_previous();
      },
      [&](int) {
        const auto consume = [&]<bool kOffsets>() {
          if constexpr (!F::kExact) block.template consume<kOffsets>(warp, lane);
          else block.template consume_exact<kOffsets>(warp, lane);
        };
        if (o.offset) consume.template operator()<true>();
        else consume.template operator()<false>();
      });
  __syncwarp();
  if (splits > 1) cluster_sync();
  else __syncthreads();
  if (warp < F::kConsumers / kWarp) block.finish(rank, splits, pairs);
  if (splits > 1) cluster_sync();  // no block may leave while others read its sums
#endif
}

template <class F> void prepare(const Stream& s) {
  static std::atomic<bool> done[64] = {};  // per device
  if (done[s.device().index % 64].exchange(true)) return;
  check(cudaFuncSetAttribute(widened_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes),
        "int4_linear");
}

/// The number of blocks that the GPU runs at once; queried once.
template <class F> int blocks_at_once(const Stream& s, int splits) {
  static std::atomic<int> known[64][kMostSplits + 1] = {};
  auto& found = known[s.device().index % 64][splits];
  if (found) return found;
  prepare<F>(s);
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension, .val = {}};
  cluster.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(splits), config.blockDim = F::kThreads;
  config.dynamicSmemBytes = F::kSharedBytes, config.attrs = &cluster, config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, widened_kernel<F>, &config), "cudaOccupancyMaxActiveClusters");
  return found = std::max(1, clusters * splits);
}

/// Whether the copy engine can address it where it lies.
bool addressable(View v) { return mappable(v.data(), v.dtype(), v.row_stride()); }
/// The bytes of the workspace for a copy that it can address.
std::int64_t room(View v) { return (v.bytes() + 1023) / 1024 * 1024; }
View addressed(Stream& s, View v, std::byte*& free) {
  if (!v || addressable(v)) return v;
  std::byte* const to = std::exchange(free, free + room(v));
  const auto row = static_cast<std::size_t>(v.cols() * dtype_bytes(v.dtype()));
  check(cudaMemcpy2DAsync(to, row, v.data(), static_cast<std::size_t>(v.row_stride() * dtype_bytes(v.dtype())), row,
                          static_cast<std::size_t>(v.rows()), cudaMemcpyDeviceToDevice, queue(s)),
        "int4_linear");
  return {to, v.spec(), s.device()};
}

template <class... Tiles> struct TileList {
  static constexpr std::array<WidenedTile, sizeof...(Tiles)> all = {
      WidenedTile{Tiles::kRowSets, Tiles::kCols, 1, Tiles::kExact}...};

  /// f.template operator()<F>() with the kernel of a tile.
  template <class F> static void with(const WidenedTile& tile, F&& f) {
    const auto is = [&]<class T>() { return T::kRowSets == tile.row_sets && T::kCols == tile.cols; };
    const bool found = ((is.template operator()<Tiles>() && (f.template operator()<Tiles>(), true)) || ...);
    require(found, "int4_linear", "no kernel has tiles of {} x {}: widened_tiles() lists them", 64 * tile.row_sets,
            tile.cols);
  }
};
using RoundedTiles = TileList<Widened<2, 32>, Widened<2, 64>, Widened<2, 96>, Widened<2, 128>, Widened<2, 192>,
                              Widened<2, 256>, Widened<3, 32>, Widened<3, 64>, Widened<3, 96>, Widened<3, 128>>;
using ExactTiles = TileList<Widened<2, 64, true>, Widened<2, 128, true>, Widened<2, 192, true>>;

template <class F> void with_tile(const WidenedTile& tile, F&& f) {
  if (tile.exact) ExactTiles::with(tile, f);
  else RoundedTiles::with(tile, f);
}

template <class F> void start(Stream& s, const Product& o, int splits) {
  prepare<F>(s);
  const auto columns = static_cast<int>(blocks_for(o.rows, F::kCols));
  const auto aligned8 = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 8 == 0; };
  const bool pairs = o.plain && o.y_dtype == DType::bf16 && o.n % 4 == 0 && o.y_stride % 4 == 0 && aligned8(o.y);
  const std::int64_t tiles = o.n / F::kTile, scales = o.groups * F::kTile;
  const int of_step = std::max<int>(1, static_cast<int>(F::kStep * o.groups / o.k)) * F::kTile;
  const auto by_tile = [&](const bf16* from) {
    return tensor_map(from, DType::bf16, {scales, tiles}, {scales}, {of_step, F::kTiles}, Swizzle::none);
  };
  const WidenedMaps maps{
      tensor_map(o.x, DType::bf16, {o.k, o.rows}, {o.x_stride}, {F::kStep, F::kCols}),
      tensor_map(o.packed, DType::i32, {o.k * 2, tiles}, {o.k * 2}, {F::kTileBytes / 4, F::kTiles}, Swizzle::none),
      by_tile(o.scale), by_tile(o.offset ? o.offset : o.scale)};
  launch_overlapped(queue(s), has_clusters(s), widened_kernel<F>,
                    {.grid = blocks_for(o.n, F::kRows) * static_cast<unsigned>(columns * splits),
                     .block = F::kThreads,
                     .shared = F::kSharedBytes,
                     .cluster = static_cast<unsigned>(splits)},
                    "int4_linear.widened", o, maps, columns, splits, pairs);
}

}  // namespace

bool fits_widened(const Stream& s, View x, const int4::Weight& w) {
  std::int64_t copied = 0;
  for (const View& v : {x, w.packed, w.scale, w.offset})
    if (v && !addressable(v)) copied += room(v);
  return has_sm90a(s) && x.dtype() == DType::bf16 && w.n() >= kTileRows &&
         copied <= static_cast<std::int64_t>(kWorkspaceBytes);
}

namespace {

/// Microseconds of a step, of which a multiprocessor computes `together` at a time, on an H200: its latency;
/// instructions, products, and bytes from L2 of all its blocks.
double step_time(const WidenedTile& tile, double together) {
  const double sets = tile.row_sets, cols = tile.cols;
  if (tile.exact) return together * (0.29 + 0.0027 * cols);
  const double latency = 0.25 + 0.0225 * sets + 0.0007 * sets * cols,
               work = std::max({0.065 * sets, 0.00125 * sets * cols, (cols * 128 + sets * 2176) / 48000});
  return std::max(latency, together * work);
}

}  // namespace

std::span<const WidenedTile> widened_tiles(bool exact) {
  if (exact) return ExactTiles::all;
  return RoundedTiles::all;
}

WidenedTile widened_tile(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k, bool exact) {
  const std::int64_t steps = (k + 63) / 64, processors = multiprocessors(s);
  WidenedTile best;
  double least = 0;
  for (WidenedTile tile : widened_tiles(exact))
    for (tile.splits = 1; tile.splits <= kMostSplits && tile.splits <= steps; ++tile.splits) {
      const std::int64_t columns = (rows + tile.cols - 1) / tile.cols, of_tile = 64 * tile.row_sets,
                         blocks = (n + of_tile - 1) / of_tile * columns * tile.splits;
      std::int64_t at_once = 1;
      with_tile(tile, [&]<class F>() { at_once = blocks_at_once<F>(s, tile.splits); });
      const auto rounds = std::ceil(static_cast<double>(blocks) / static_cast<double>(at_once)),
                 together = std::ceil(static_cast<double>(std::min(blocks, at_once)) / static_cast<double>(processors));
      const double time =
          rounds * (static_cast<double>((steps + tile.splits - 1) / tile.splits) * step_time(tile, together) + 4 +
                    (tile.splits > 1 ? 1.2 + 0.2 * tile.splits : 0.0));
      if (least == 0 || time < least) least = time, best = tile;
    }
  return best;
}

void quant4::make_addressable(Stream& s, View& x, int4::Weight& w) {
  auto* free = static_cast<std::byte*>(workspace(s));
  for (View* v : {&x, &w.packed, &w.scale, &w.offset}) *v = addressed(s, *v, free);
}

void quant4::multiply_widened(Stream& s, const Product& o, const WidenedTile& tile) {
  with_tile(tile, [&]<class F>() { start<F>(s, o, tile.splits); });
}

}  // namespace hpcdl::cuda
