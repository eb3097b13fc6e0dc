#pragma once
// From operands to launches (.cu files). The kernels of each group size are compiled in a separate file.

#include <algorithm>
#include <atomic>
#include <iterator>

#include "hpcdl/ops/int4_linear/int4_direct.cuh"
#include "hpcdl/ops/int4_linear/int4_exact.cuh"
#include "hpcdl/ops/int4_linear/int4_few.cuh"
#include "hpcdl/ops/int4_linear/int4_many.cuh"
#include "hpcdl/ops/int4_linear/int4_strip.cuh"
#include "hpcdl/ops/int4_linear/int4_warpgroups.cuh"

namespace hpcdl::cuda::quant4 {

/// One row of x (kFused) or a few: tiles of 16 rows of W, warps, chunks in flight per warp, blocks that a
/// multiprocessor should hold. Measured on an H200; the list covers N and K from 768 to 50304.
template <int kTiles_, int kCols_, int kWarps_, int kStages_, int kBlocks_> struct FewWay {
  static constexpr int kTiles = kTiles_, kCols = kCols_, kWarps = kWarps_, kStages = kStages_, kBlocks = kBlocks_;
};
template <class... W> struct Ways {
  static constexpr int count = sizeof...(W);
};
using OneRow = Ways<FewWay<2, 1, 16, 1, 1>, FewWay<2, 1, 16, 2, 1>, FewWay<2, 1, 8, 1, 3>, FewWay<1, 1, 16, 1, 2>,
                    FewWay<4, 1, 8, 2, 1>, FewWay<1, 1, 8, 2, 3>>;
using FewRows = Ways<FewWay<2, 1, 8, 2, 2>, FewWay<2, 2, 8, 1, 2>, FewWay<2, 2, 4, 2, 2>, FewWay<2, 2, 8, 2, 1>>;

/// Many rows on Hopper: warpgroups side by side over rows of W, rows of x and steps; rows of x per warpgroup; blocks
/// that divide the steps.
template <int kRowSets_, int kColSets_, int kSplit_, int kCols_, int kCluster_> struct WideWay {
  static constexpr int kRowSets = kRowSets_, kColSets = kColSets_, kSplit = kSplit_, kCols = kCols_,
                       kCluster = kCluster_;
};
using WideRows = Ways<WideWay<1, 1, 4, 32, 2>, WideWay<1, 1, 4, 64, 2>, WideWay<1, 1, 4, 64, 1>,
                      WideWay<1, 2, 2, 64, 2>, WideWay<1, 2, 2, 64, 1>, WideWay<2, 1, 1, 128, 1>>;

/// One row of x with constant weights on Hopper: tiles, warps.
template <int kTiles_, int kWarps_> struct StripWay {
  static constexpr int kTiles = kTiles_, kWarps = kWarps_;
};
using Strips = Ways<StripWay<2, 16>, StripWay<4, 16>>;

/// The same, loaded directly into registers: pairs of tiles, warps.
struct DirectWay {
  int pairs, warps;
};
inline constexpr DirectWay kDirects[] = {{1, 16}, {2, 16}, {1, 32}};

// Ids of ways: those of OneRow, FewRows, the product of tiles, the exact product, those of WideRows, Strips, kDirects;
// with weights widened to bf16 in memory, and in registers.
inline constexpr int kFirstFew = OneRow::count, kManyWay = kFirstFew + FewRows::count, kExactWay = kManyWay + 1,
                     kFirstWide = kExactWay + 1, kFirstStrip = kFirstWide + WideRows::count,
                     kFirstDirect = kFirstStrip + Strips::count,
                     kWidenedInMemory = kFirstDirect + static_cast<int>(std::size(kDirects)),
                     kWidenedInRegisters = kWidenedInMemory + 1, kExactInRegisters = kWidenedInRegisters + 1,
                     kWays = kExactInRegisters + 1;

struct Limits {
  int processors, shared_per_block, shared_per_processor;
  bool overlap;     // a kernel may begin before the preceding one ends
  bool warpgroups;  // Hopper's wgmma instructions
};

template <int kGroup> void run_way(int way, const Product& o, const Limits& on, cudaStream_t queue);
/// Shared memory of a way that does not support every shape.
template <int kGroup> int shared_bytes(int way, std::int64_t k);
extern template void run_way<32>(int, const Product&, const Limits&, cudaStream_t);
extern template void run_way<64>(int, const Product&, const Limits&, cudaStream_t);
extern template void run_way<128>(int, const Product&, const Limits&, cudaStream_t);
extern template int shared_bytes<32>(int, std::int64_t);
extern template int shared_bytes<64>(int, std::int64_t);
extern template int shared_bytes<128>(int, std::int64_t);

#if defined(HPCDL_INT4_GROUP)

/// kWide: in the order that warpgroup products read.
template <int kGroup, bool kWide> __global__ void __launch_bounds__(256) round_rows(Product o) {
  let_next_begin();
  await_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t chunks = (o.k + kChunk - 1) / kChunk, i = std::int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp;
  if (i >= o.rows * chunks) return;
  const std::int64_t row = i / chunks, at = i % chunks * kChunk + lane * 8;
  float step;
  int sum;
  const int2 q = round_inputs<kGroup / 8>(at < o.k ? inputs(o, row * o.x_stride + at) : Lanes<8>(0.0f), step, sum);
  if (at >= o.k) return;
  if constexpr (kWide) {
    *reinterpret_cast<int*>(o.values + place_of_input(o.rows, row, at)) = q.x;
    *reinterpret_cast<int*>(o.values + place_of_input(o.rows, row, at + 4)) = q.y;
  } else {
    *reinterpret_cast<int2*>(o.values + row * o.k + at) = q;
  }
  if (lane % (kGroup / 8) == 0) o.steps[at / kGroup * o.rows + row] = step, o.sums[at / kGroup * o.rows + row] = sum;
}

/// Launches a kernel that may begin before the preceding one has ended; it waits for that one itself (await_previous).
/// `cluster`: blocks per cluster.
template <auto kKernel>
void start_overlapped(dim3 grid, int threads, int shared, const Product& o, const Limits& on, cudaStream_t queue,
                      const char* name, int cluster = 1) {
  if (shared > (48 << 10)) {
    static std::atomic<int> granted[64] = {};  // per device
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    if (granted[device % 64] < shared) {
      check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), name);
      check(
          cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          name);
      granted[device % 64] = shared;
    }
  }
  launch_overlapped(queue, on.overlap, kKernel,
                    {.grid = grid,
                     .block = dim3(static_cast<unsigned>(threads)),
                     .shared = static_cast<std::size_t>(shared),
                     .cluster = static_cast<unsigned>(cluster)},
                    name, o);
}

/// As many blocks as run at once, evenly loaded.
template <class F> void start_few(const Product& o, const Limits& on, cudaStream_t queue) {
  const int shared = F::shared_bytes(o.k),
            at_once = std::max(1, std::min(F::kBlocks, on.shared_per_processor / (shared + 1024))) * on.processors;
  const unsigned blocks = blocks_for(o.n, F::kRows),
                 turns = (blocks + static_cast<unsigned>(at_once) - 1) / static_cast<unsigned>(at_once);
  start_overlapped<multiply_few<F>>(dim3((blocks + turns - 1) / turns, blocks_for(o.rows, F::kInputs)), F::kThreads,
                                    shared, o, on, queue, "int4_linear");
}

template <int kGroup, class W, bool kFused>
using FewOf = Few<kGroup, W::kTiles, W::kCols, kFused, W::kWarps, W::kStages, W::kBlocks>;
template <int kGroup> using ManyOf = Many<kGroup, 4, 4, 2, 4, 3>;

/// Calls f with the kernel of way number `index` of a list.
template <int kGroup, bool kFused, class F, class... W> void with_few(Ways<W...>, int index, F&& f) {
  int i = 0;
  ((i++ == index ? f.template operator()<FewOf<kGroup, W, kFused>>() : void()), ...);
}
template <int kGroup, class F, class... W> void with_wide(Ways<W...>, int index, F&& f) {
  int i = 0;
  ((i++ == index ? f.template operator()<Wide<kGroup, W::kRowSets, W::kColSets, W::kSplit, W::kCols, W::kCluster>>()
                 : void()),
   ...);
}
template <int kGroup, class F, class... W> void with_strip(Ways<W...>, int index, F&& f) {
  int i = 0;
  ((i++ == index ? f.template operator()<Strip<kGroup, W::kTiles, W::kWarps>>() : void()), ...);
}
/// For one row or a few.
template <int kGroup, class F> void with_way(int way, F&& f) {
  if (way < kFirstFew) with_few<kGroup, true>(OneRow{}, way, f);
  else if (way < kManyWay) with_few<kGroup, false>(FewRows{}, way - kFirstFew, f);
}

template <int kGroup> int shared_bytes(int way, std::int64_t k) {
  int bytes = way == kManyWay    ? ManyOf<kGroup>::kSharedBytes
              : way == kExactWay ? Exact<kGroup, float>::kSharedBytes
                                 : 0;
  with_way<kGroup>(way, [&]<class F>() { bytes = F::shared_bytes(k); });
  with_wide<kGroup>(WideRows{}, way - kFirstWide, [&]<class F>() { bytes = F::kSharedBytes; });
  with_strip<kGroup>(Strips{}, way - kFirstStrip, [&]<class F>() { bytes = F::shared_bytes(k); });
  return bytes;
}

template <int kGroup> void run_way(int way, const Product& o, const Limits& on, cudaStream_t queue) {
  if (way == kExactWay) {
    const dim3 grid(blocks_for(o.n, kTileRows), blocks_for(o.rows, Exact<kGroup, float>::kInputs));
    const auto start = [&]<class X>() {
      using F = Exact<kGroup, X>;
      start_overlapped<multiply_exact<F>>(grid, F::kThreads, F::kSharedBytes, o, on, queue, "int4_linear.exact");
    };
    if (o.x_dtype == DType::bf16) start.template operator()<bf16>();
    else if (o.x_dtype == DType::f16) start.template operator()<f16>();
    else start.template operator()<float>();
    return;
  }
  if (way >= kFirstDirect) {
    const auto start = [&]<class F>() {
      const int warps = std::max(F::kPairs, static_cast<int>(o.k / kChunk));
      start_overlapped<multiply_direct<F>>(dim3(blocks_for(o.n, F::kRows)), warps * kWarp, 0, o, on, queue,
                                           "int4_linear.direct");
    };
    const auto with = [&]<int i>() {
      start.template operator()<Direct<kGroup, kDirects[i].pairs, kDirects[i].warps>>();
    };
    if (way == kFirstDirect) with.template operator()<0>();
    else if (way == kFirstDirect + 1) with.template operator()<1>();
    else with.template operator()<2>();
    return;
  }
  if (way >= kFirstStrip) {
    with_strip<kGroup>(Strips{}, way - kFirstStrip, [&]<class F>() {
      const auto start = [&]<bool kAligned>() {
        start_overlapped<multiply_strip<F, kAligned>>(dim3(blocks_for(o.n, F::kRows)), F::kThreads,
                                                      F::shared_bytes(o.k, o.offset != nullptr), o, on, queue,
                                                      "int4_linear.strip");
      };
      if (o.aligned) start.template operator()<true>();
      else start.template operator()<false>();
    });
    return;
  }
  const dim3 rounding(blocks_for(o.rows * ((o.k + kChunk - 1) / kChunk), 8));
  if (way >= kFirstWide) {
    start_overlapped<round_rows<kGroup, true>>(rounding, 256, 0, o, on, queue, "int4_linear.inputs");
    with_wide<kGroup>(WideRows{}, way - kFirstWide, [&]<class F>() {
      start_overlapped<multiply_wide<F>>(dim3(blocks_for(o.n, F::kRows) * F::kCluster, blocks_for(o.rows, F::kInputs)),
                                         F::kThreads, F::kSharedBytes, o, on, queue, "int4_linear.warpgroups",
                                         F::kCluster);
    });
    return;
  }
  if (way >= kFirstFew)
    start_overlapped<round_rows<kGroup, false>>(rounding, 256, 0, o, on, queue, "int4_linear.inputs");
  with_way<kGroup>(way, [&]<class F>() { start_few<F>(o, on, queue); });
  if (way != kManyWay) return;
  using F = ManyOf<kGroup>;
  start_overlapped<multiply_many<F>>(dim3(blocks_for(o.n, F::kRows), blocks_for(o.rows, F::kInputs)), F::kThreads,
                                     F::kSharedBytes, o, on, queue, "int4_linear.tiles");
}

template void run_way<HPCDL_INT4_GROUP>(int, const Product&, const Limits&, cudaStream_t);
template int shared_bytes<HPCDL_INT4_GROUP>(int, std::int64_t);
#endif

}  // namespace hpcdl::cuda::quant4
