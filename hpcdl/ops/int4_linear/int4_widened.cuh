#pragma once
// The kernel of int4_widened.h (.cu files).
//
// A block computes kRows rows of W by kCols of x. One warp keeps the copy engine busy, 64 inputs at a time;
// warpgroups widen weights to bf16 in registers, as operand A, while their previous products run. Exact products are
// those of the weights' four bits alone, which bf16 can hold; the sums of a group are multiplied by its scale in f32.
// If there are few tiles, the blocks of a cluster divide K and add up their sums in order.
//
// Tried on an H200: blocks of a cluster that load x for each other (a step of 128 x 256 takes 0.70 us either way), and two
// warpgroups that take the steps of 64 rows of W in turns (64 x 128 0.40 us, 128 x 128 as here 0.51).

#include <type_traits>

#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

inline constexpr int kHalfDepths = 2;  // of 16 inputs in half a step, the smallest group

template <int kRowSets_, int kCols_, bool kExact_ = false> struct Widened {
  static constexpr bool kExact = kExact_;
  static constexpr int kRowSets = kRowSets_, kCols = kCols_, kConsumers = kRowSets * 128, kThreads = kConsumers + 128;
  static constexpr int kResident = kRowSets == 2 && kCols <= 64 && !kExact ? 2 : 1;  // blocks per multiprocessor
  static constexpr bool kContinues = kResident == 1;  // two of them have no registers left for it
  static constexpr int kProducerRegisters = kResident == 2 ? 24 : 40, kConsumerRegisters = kResident == 2  ? 104
                                                                                           : kRowSets == 3 ? 152
                                                                                                           : 232;
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
  static constexpr int kMostStages = ((224 << 10) / kResident - 2048) / kStageBytes,
                       kStages = kMostStages < 16 ? kMostStages : 16;
  // Loads of weights are over when the products that take them are; a last tile adds the arrivals of a warp's copies.
  using Steps = Channel<kStages, Warps<4 * kRowSets>, Reads::ordinary>;
  using Memory = Arena<Room<std::byte, kStages * kStageBytes, 1024>, Stages<Steps>>;
  static constexpr int kSharedBytes = Memory::kBytes;
  static_assert(kCols * kLine * 4 <= kStages * kStageBytes && kBlocks * 4 == kWarp);
};

/// The division of a product among clusters, which take every so many-th of the places.
struct WidenedGrid {
  int columns, places, splits;  // blocks that divide the rows of x; all of them; blocks that divide K
  bool quads;                   // results can be stored four at a time

  /// Results leave while the next stages are loaded. Otherwise sums go through the stages, and a cluster has one place.
  template <class F> __host__ __device__ bool continues() const { return F::kContinues && splits == 1 && quads; }
};

struct WidenedMaps {
  TensorMap x, packed, scale, offset;  // tiles of W: a row each
};

#if HPCDL_SM90A

__device__ inline float4 load_four(unsigned rank, const float* p) {
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
  const WidenedGrid& grid;
  std::byte* ring;
  typename F::Steps stages;
  int begin, end;                  // steps
  bool ragged;                     // a tile of W has fewer rows
  int group_bits, groups_of_step;  // log2 of the inputs per scale; scales per row and step, 1 or 2
  // Of the place:
  std::int64_t row = 0, first = 0;  // of W and of x
  int count = 0;                    // rows of x
  int last_tile = -1;               // the tile of W that has fewer rows, -1 if none has

  __device__ std::byte* stage(int i) const { return ring + i * F::kStageBytes; }
  __device__ void move_to(int place) {
    row = std::int64_t{place / grid.columns} * F::kRows, first = std::int64_t{place % grid.columns} * F::kCols;
    const std::int64_t left = o.rows - first, rows = o.n - row;
    count = static_cast<int>(left < F::kCols ? left : F::kCols);
    last_tile = ragged && rows < F::kRows ? static_cast<int>(rows / F::kTile) : -1;
  }
  /// f() at each place of this block's cluster.
  template <class Each> __device__ void everywhere(Each&& f) {
    int place = static_cast<int>(blockIdx.x) / grid.splits;
    do {
      move_to(place), f();
      place += static_cast<int>(gridDim.x) / grid.splits;
    } while (F::kContinues && place < grid.places);
  }

  /// Elements beyond the matrices become 0.
  __device__ void fetch_weights(int at, int step, int lane) const {
    const int of_scales = groups_of_step * F::kTile * 2 * F::kTiles;
    if (lane == 0) {
      std::byte* to = stage(at);
      const int tile = static_cast<int>(row / F::kTile), scale = (step * F::kStep >> group_bits) * F::kTile;
      Barrier* const full = stages.expect(
          Slot{at, 0},
          static_cast<unsigned>(F::kInputBytes + F::kTiles * F::kTileBytes + of_scales * (o.offset ? 2 : 1)));
      tma_load(to + F::kInputBytes, maps.packed, full, step * (F::kTileBytes / 4), tile);
      tma_load(to + F::kScales, maps.scale, full, scale, tile);
      if (o.offset) tma_load(to + F::kOffsets, maps.offset, full, scale, tile);
    }
    if (last_tile >= 0) fetch_last(stage(at), step, lane);
    if (ragged) Mbarriers::arrive_with_copies(stages.full + at);
  }
  __device__ void fetch_inputs(int at, int step, int lane) const {
    if (lane == 0) tma_load(stage(at), maps.x, stages.full + at, step * F::kStep, static_cast<int>(first));
  }
  __device__ void fetch_last(std::byte* to, int step, int lane) const {
    const std::int64_t at = row + last_tile * F::kTile, block = std::int64_t{step} * F::kBlocks,
                       of_group = std::int64_t{step} * F::kStep >> group_bits;
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
  __device__ void produce(int lane) {
    auto at = stages.to_put();
    bool begun = false;
    everywhere([&] {
      int step = begin;
      if (!begun) {
        const int ahead = end - begin < F::kStages ? end - begin : F::kStages;
        if (!o.constant) await_previous();
        for (int i = 0; i < ahead; ++i) fetch_weights(i, begin + i, lane);
        if (o.constant) await_previous();
        for (int i = 0; i < ahead; ++i) fetch_inputs(i, begin + i, lane);
        step += ahead, at.skip(ahead), begun = true;
      }
      for (; step < end; ++step, at.next()) {
        stages.wait_empty(at);
        fetch_weights(at.stage, step, lane), fetch_inputs(at.stage, step, lane);
      }
    });
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
  /// In registers, else it would be found again at every step.
  __device__ Place fixed_place(int tile, int lane) const {
    Place at = place(tile, lane);
    if constexpr (F::kResident == 1) asm volatile("" : "+r"(at.weights), "+r"(at.scales), "+r"(at.offsets));
    return at;
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
  template <bool kOffsets> __device__ void consume(Ring<F::kStages>& now, int warp, int lane) const {
    float sums[F::kCols / 2];
    unsigned a[2][4][4];
    Raw raw;
    const Place at = fixed_place(warp, lane);
    auto next = now;
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
    stages.done(before);
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
  /// of kTogether steps are waited for in them: the compiler lets products run beside others only where it sees both ends.
  template <bool kOffsets> __device__ void consume_exact(Ring<F::kStages>& now, int warp, int lane) const {
    constexpr int kChunk = 64, kChunks = F::kCols / kChunk, kGroups = 2 * kChunks;
    constexpr std::uint64_t kNextChunk = kChunk * F::kStep * 2 >> 4;
    constexpr int kTogether = F::kCols < 192 ? 2 : 1;
    constexpr bool kAlone = kOffsets && kChunks == 1;  // neighbouring groups of products have the same sums
    float sums[kChunks][kChunk / 2] = {}, part[2][kChunk / 2];
    Half halves[2];
    const Place at = fixed_place(warp, lane);
    auto next = now;
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
    const auto get = [&] {
      stages.get(next);
      bring<kOffsets>(halves[0], stage(next.stage), at, 0, lane % 4);
      next.next();
    };
    const auto take = [&]<int kCount>(int step) {
      int before = -1;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const std::byte* from = stage(now.stage);
        const std::uint64_t b = wgmma_descriptor<Major::k>(from);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const bool first = n == 0 && i == 0;
          const int previous = (i + kGroups - 1) % kGroups;
          if (kAlone && !first) wgmma_wait<0>(), scale(previous);
          multiply(i, b);
          if (!kAlone && !first) wgmma_wait<1>(), scale(previous);
          if (i > 0) continue;
          if (n > 0) stages.done(before);
          bring<kOffsets>(halves[1], from, at, 1, lane % 4);
        }
        if (n + 1 < kCount || step + kCount < end) get();
        before = now.stage;
        now.next();
      }
      wgmma_wait<0>();
      scale(kGroups - 1);
      stages.done(before);
    };
    get();
    int step = begin;
    for (; step + kTogether <= end; step += kTogether) take.template operator()<kTogether>(step);
    for (; step < end; ++step) take.template operator()<1>(step);
    leave([&](int i) { return sums[i / (kChunk / 2)][i % (kChunk / 2)]; }, warp, lane);
  }

  /// Writes results, or a warp's sums to where finish() reads them.
  template <class Sums> __device__ void leave(const Sums& sums, int warp, int lane) const {
    if (grid.template continues<F>()) {
      if (o.y_dtype == DType::f32) write_pairs<float, float2>(sums, warp, lane);
      else write_pairs<bf16, __nv_bfloat162>(sums, warp, lane);
      return;
    }
    named_sync(1, F::kConsumers);  // no thread reads the ring any more
    float* part = reinterpret_cast<float*>(ring) + warp * F::kTile + lane / 4 * 2 + lane % 4 * 2 * F::kLine;
#pragma unroll
    for (int j = 0; j < F::kCols / 2; j += 4)
#pragma unroll
      for (int col = 0; col < 2; ++col)
        *reinterpret_cast<float2*>(part + (j * 2 + col) * F::kLine) = {sums(j + col), sums(j + 2 + col)};
  }
  /// Two neighbours at a time: those of eight lanes are a sector of memory.
  template <class T, class Pair, class Sums> __device__ void write_pairs(const Sums& sums, int warp, int lane) const {
    const std::int64_t at = row + warp * F::kTile + lane / 4 * 2;
    if (at >= o.n) return;
    const int col = lane % 4 * 2;
    T* to = static_cast<T*>(o.y) + (first + col) * o.y_stride + at;
#pragma unroll
    for (int j = 0; j < F::kCols / 8; ++j, to += 8 * o.y_stride)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * j + col + i < count) {
          const float2 v{sums(4 * j + i), sums(4 * j + 2 + i)};
          if constexpr (std::is_same_v<Pair, float2>) *reinterpret_cast<Pair*>(to + i * o.y_stride) = v;
          else *reinterpret_cast<Pair*>(to + i * o.y_stride) = __floats2bfloat162_rn(v.x, v.y);
        }
  }
  /// Four neighbouring results of row `col` of the block's rows of x.
  __device__ void put_quad(const float4& v, int col, std::int64_t at) const {
    const std::int64_t place = (first + col) * o.y_stride + at;
    if (!grid.quads) {
      const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (at + j < o.n) put(o, each[j], first + col, at + j);
    } else if (o.y_dtype == DType::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(o.y) + place) = v;
    } else {
      const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
      *reinterpret_cast<uint2*>(static_cast<bf16*>(o.y) + place) = {reinterpret_cast<const unsigned&>(low),
                                                                    reinterpret_cast<const unsigned&>(high)};
    }
  }
  /// Adds the sums of the blocks of the cluster in order; each block finishes its share of the results. Its own sums are
  /// not read through the cluster: those loads are slow.
  __device__ void finish(int split) const {
    constexpr int kQuads = F::kRows / 4;
    const auto* parts = reinterpret_cast<const float*>(ring);
    for (int i = split * F::kConsumers + static_cast<int>(threadIdx.x); i < kQuads * F::kCols;
         i += grid.splits * F::kConsumers) {
      const int quad = i % kQuads * 4, col = i / kQuads;
      const std::int64_t at = row + quad;
      if (at >= o.n || col >= count) continue;
      const float* from = parts + col * F::kLine + quad;
      float4 sum{};
      for (int block = 0; block < grid.splits; ++block) {
        const float4 of =
            block == split ? *reinterpret_cast<const float4*>(from) : load_four(static_cast<unsigned>(block), from);
        sum.x += of.x, sum.y += of.y, sum.z += of.z, sum.w += of.w;
      }
      put_quad(sum, col, at);
    }
  }
};

#endif

template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kResident)
    widened_kernel(const __grid_constant__ Product o, const __grid_constant__ WidenedMaps maps,
                   const __grid_constant__ WidenedGrid grid) {
#if HPCDL_SM90A
  const typename F::Memory memory;
  const auto stages = memory.template part<1>();
  const int warp = warp_index(), lane = static_cast<int>(threadIdx.x) % kWarp,
            split = static_cast<int>(blockIdx.x) % grid.splits,
            steps = static_cast<int>((o.k + F::kStep - 1) / F::kStep), group = static_cast<int>(o.k / o.groups);
  const bool ragged = o.n % F::kTile != 0;
  const auto init = [&] {
    for (int i = 0; i < F::kStages; ++i)
      Mbarriers::init(stages.full + i, ragged ? 1 + kWarp : 1), Mbarriers::init(stages.empty(i), 4 * F::kRowSets);
  };
  start_block(init, maps.x, maps.packed, maps.scale);
  let_next_begin();
  WidenedBlock<F> block{o,
                        maps,
                        grid,
                        memory.template part<0>(),
                        stages,
                        steps * split / grid.splits,
                        steps * (split + 1) / grid.splits,
                        ragged,
                        31 - __clz(group),
                        group < F::kStep ? F::kStep / group : 1};
  roles<Producers<F::kProducerRegisters, 1, kWarp>, Consumers<F::kRowSets, F::kConsumerRegisters>>(
      [&](int) {
        block.produce(lane);
        await_previous();
      },
      [&](int) {
        const auto consume = [&]<bool kOffsets>() {
          Ring<F::kStages> at;
          block.everywhere([&] {
            if constexpr (!F::kExact) block.template consume<kOffsets>(at, warp, lane);
            else block.template consume_exact<kOffsets>(at, warp, lane);
          });
        };
        if (o.offset) consume.template operator()<true>();
        else consume.template operator()<false>();
      });
  if (grid.template continues<F>()) return;
  __syncwarp();
  if (grid.splits > 1) cluster_sync();
  else __syncthreads();
  if (warp < F::kConsumers / kWarp) block.finish(split);
  if (grid.splits > 1) cluster_sync();  // no block may leave while others read its sums
#endif
}

}  // namespace hpcdl::cuda::quant4
