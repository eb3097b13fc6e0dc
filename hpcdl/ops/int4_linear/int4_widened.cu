#include "hpcdl/ops/int4_linear/int4_widened.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
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

constexpr int kMostSplits = 8, kMostCols = 128,
              kMostExactCols = 96;  // with 128 the two sets of sums do not fit in registers

template <int kRowSets_, int kCols_, bool kExact_ = false> struct Widened {
  static constexpr bool kExact = kExact_;
  static constexpr int kRowSets = kRowSets_, kCols = kCols_, kConsumers = kRowSets * 128, kThreads = kConsumers + kWarp;
  static constexpr int kResident = kRowSets == 2 && kCols <= 64 && !kExact ? 2 : 1;  // blocks per multiprocessor
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
  /// Operand A of a step.
  template <bool kOffsets> __device__ void widen(unsigned (&a)[4][4], const std::byte* from, Place at, int t) const {
    uint2 w[F::kBlocks];
#pragma unroll
    for (int i = 0; i < F::kBlocks; ++i) w[i] = *reinterpret_cast<const uint2*>(from + at.weights + i * (F::kTile * 4));
    const auto both = [&](int place, int half, __nv_bfloat162(&to)[2]) {
      const unsigned v =
          *reinterpret_cast<const unsigned*>(from + place + (half & (groups_of_step - 1)) * (F::kTile * 2));
      const unsigned low = __byte_perm(v, 0, 0x1010), high = __byte_perm(v, 0, 0x3232);
      to[0] = reinterpret_cast<const __nv_bfloat162&>(low), to[1] = reinterpret_cast<const __nv_bfloat162&>(high);
    };
    __nv_bfloat162 scale[2][2], offset[2][2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      both(at.scales, half, scale[half]);
      if constexpr (kOffsets) both(at.offsets, half, offset[half]);
    }
    const unsigned shift = t / 2 * 4, select = t % 2 ? 0x4342u : 0x4140u;
#pragma unroll
    for (int i = 0; i < F::kBlocks; ++i) {
      const int half = i / 4;
      a[i / 2][i % 2 * 2] = widened_pair<kOffsets>(w[i].x >> shift, select, scale[half][0], offset[half][0]);
      a[i / 2][i % 2 * 2 + 1] = widened_pair<kOffsets>(w[i].y >> shift, select, scale[half][1], offset[half][1]);
    }
  }
  template <bool kOffsets> __device__ void consume(int warp, int lane) const {
    float sums[F::kCols / 2];
    unsigned a[2][4][4];
    const Place at = place(warp, lane);
    Ring<F::kStages> ring_at;
    int before = -1;
    const auto multiply = [&](unsigned (&now)[4][4], bool add) {
      stages.get(ring_at);
      const std::byte* from = stage(ring_at.stage);
      widen<kOffsets>(now, from, at, lane % 4);
      const std::uint64_t b = wgmma_descriptor<Major::k>(from);
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < 4; ++m) wgmma<bf16, Major::k>(sums, now[m], b + m * kStepK, add || m > 0);
      wgmma_commit();
      wgmma_wait<1>();  // the products of the previous step, which read the other operand A
      if (before >= 0) stages.done(before);
      before = ring_at.stage;
      ring_at.next();
    };
    int step = begin;
    for (; step + 1 < end; step += 2) multiply(a[0], step > begin), multiply(a[1], true);
    wgmma_wait<0>();
    if (step < end) multiply(a[0], step > begin);
    wgmma_wait<0>();
    wgmma_pin(sums);
    leave(sums, warp, lane);
  }

  static constexpr int kHalfDepths = 2;  // of 16 inputs in half a step, the smallest group
  /// Operand A of half a step without scales and offsets.
  __device__ void four_bits(unsigned (&a)[kHalfDepths][4], const std::byte* from, int half, int t) const {
    const unsigned shift = t / 2 * 4, select = t % 2 ? 0x4342u : 0x4140u;
#pragma unroll
    for (int i = 0; i < F::kBlocks / 2; ++i) {
      const uint2 w = *reinterpret_cast<const uint2*>(from + (half * (F::kBlocks / 2) + i) * (F::kTile * 4));
      const __nv_bfloat162 upper = bits_pair(w.x >> shift, select), lower = bits_pair(w.y >> shift, select);
      a[i / 2][i % 2 * 2] = reinterpret_cast<const unsigned&>(upper);
      a[i / 2][i % 2 * 2 + 1] = reinterpret_cast<const unsigned&>(lower);
    }
  }
  /// While the products of half a step run, the weights of the next half are brought. Offsets are multiplied by x like
  /// weights, since bf16 holds them.
  template <bool kOffsets> __device__ void consume_exact(int warp, int lane) const {
    float sums[F::kCols / 2], part[F::kCols / 2];
#pragma unroll
    for (int i = 0; i < F::kCols / 2; ++i) sums[i] = 0;
    unsigned a[2][kHalfDepths][4];
    const Place at = place(warp, lane);
    Ring<F::kStages> now, next;
    stages.get(next);
    four_bits(a[0], stage(0) + at.weights, 0, lane % 4);
    for (int step = begin; step < end; ++step, now.next()) {
      const std::byte* from = stage(now.stage);
      const std::uint64_t b = wgmma_descriptor<Major::k>(from);
      next.next();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto pair_at = [&](int place) {
          return *reinterpret_cast<const unsigned*>(from + place + (half & (groups_of_step - 1)) * (F::kTile * 2));
        };
        const float2 scale = widen_pair(pair_at(at.scales));
        unsigned offset[4];
        if constexpr (kOffsets) {
          const unsigned v = pair_at(at.offsets);
          offset[0] = offset[2] = __byte_perm(v, 0, 0x1010), offset[1] = offset[3] = __byte_perm(v, 0, 0x3232);
        }
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < kHalfDepths; ++m)
          wgmma<bf16, Major::k>(part, a[half][m], b + (half * kHalfDepths + m) * kStepK, m > 0);
        if constexpr (kOffsets)
#pragma unroll
          for (int m = 0; m < kHalfDepths; ++m)
            wgmma<bf16, Major::k>(sums, offset, b + (half * kHalfDepths + m) * kStepK, true);
        wgmma_commit();
        if (half == 0) {
          four_bits(a[1], from + at.weights, 1, lane % 4);
        } else if (step + 1 < end) {
          stages.get(next);
          four_bits(a[0], stage(next.stage) + at.weights, 0, lane % 4);
        }
        wgmma_wait<0>();
        wgmma_pin(part);
        if constexpr (kOffsets) wgmma_pin(sums);
#pragma unroll
        for (int i = 0; i < F::kCols / 2; ++i) sums[i] = ::fmaf(part[i], i / 2 % 2 ? scale.y : scale.x, sums[i]);
      }
      stages.done(now.stage);
    }
    leave(sums, warp, lane);
  }

  /// Writes a warp's sums to where finish() reads them.
  __device__ void leave(const float (&sums)[F::kCols / 2], int warp, int lane) const {
    named_sync(1, F::kConsumers);  // no thread reads the ring any more
    float* part = reinterpret_cast<float*>(ring) + warp * F::kTile + lane / 4 * 2 + lane % 4 * 2 * F::kLine;
#pragma unroll
    for (int j = 0; j < F::kCols / 2; j += 4)
#pragma unroll
      for (int col = 0; col < 2; ++col)
        *reinterpret_cast<float2*>(part + (j * 2 + col) * F::kLine) = {sums[j + col], sums[j + 2 + col]};
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
  if (warp < F::kConsumers / kWarp) {
    const auto consume = [&]<bool kOffsets>() {
      if constexpr (!F::kExact) block.template consume<kOffsets>(warp, lane);
      else block.template consume_exact<kOffsets>(warp, lane);
    };
    if (o.offset) consume.template operator()<true>();
    else consume.template operator()<false>();
    if (splits > 1) cluster_sync();
    else named_sync(1, F::kConsumers);
    block.finish(rank, splits, pairs);
  } else {
    block.produce(lane);
    await_previous();
    __syncwarp();
    if (splits > 1) cluster_sync();
  }
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

/// f.template operator()<F>() with the kernel of a tile.
template <class F> void with_tile(const WidenedTile& tile, F&& f) {
  const auto with = [&]<int kRowSets>() {
    if (tile.cols == 32) f.template operator()<Widened<kRowSets, 32>>();
    else if (tile.cols == 64) f.template operator()<Widened<kRowSets, 64>>();
    else if (tile.cols == 96) f.template operator()<Widened<kRowSets, 96>>();
    else f.template operator()<Widened<kRowSets, 128>>();
  };
  if (tile.exact && tile.cols <= 64) f.template operator()<Widened<2, 64, true>>();
  else if (tile.exact) f.template operator()<Widened<2, 96, true>>();
  else if (tile.row_sets == 2) with.template operator()<2>();
  else with.template operator()<3>();
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

WidenedTile widened_tile(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k, bool exact) {
  const std::int64_t most = exact ? kMostExactCols : kMostCols, columns = (rows + most - 1) / most,
                     each = (rows + columns - 1) / columns, steps = (k + 63) / 64, processors = multiprocessors(s);
  const int cols = each <= 32 && !exact ? 32 : each <= 64 ? 64 : each <= 96 ? 96 : 128;
  WidenedTile best;
  double least = 0;
  for (int row_sets = 2; row_sets <= (exact ? 2 : 3); ++row_sets)
    for (int splits = 1; splits <= kMostSplits && splits <= steps; ++splits) {
      const WidenedTile tile{row_sets, cols, splits, exact};
      const std::int64_t blocks = (n + 64 * row_sets - 1) / (64 * row_sets) * columns * splits;
      std::int64_t at_once = 1;
      with_tile(tile, [&]<class F>() { at_once = blocks_at_once<F>(s, splits); });
      const double together =
                       std::ceil(static_cast<double>(std::min(blocks, at_once)) / static_cast<double>(processors)),
                   rounds = std::ceil(static_cast<double>(blocks) / static_cast<double>(at_once));
      // Microseconds of a step: its latency; instructions, products, and bytes from L2 of all blocks of a
      // multiprocessor. Of a block: its start, and the exchange of sums.
      const double sets = row_sets, latency = 0.25 + 0.0225 * sets + 0.0007 * sets * cols,
                   work = std::max({0.065 * sets, 0.00125 * sets * cols, (cols * 128 + sets * 2176) / 38000}),
                   step = std::max(latency, together * work),
                   time = rounds * (static_cast<double>((steps + splits - 1) / splits) * step + 4 +
                                    (splits > 1 ? 1.2 + 0.2 * splits : 0.0));
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
