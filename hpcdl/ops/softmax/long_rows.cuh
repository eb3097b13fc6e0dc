#pragma once
// Rows of softmax that one multiprocessor cannot hold, on GPUs with clusters (.cu files). The blocks of a cluster
// divide a row and continue with the next one without being restarted: a ring of chunks in shared memory holds a
// block's piece of the current row and the beginning of the next row's, loaded by one thread. Every row is read twice
// from shared memory: for the sum, chunk by chunk as they arrive, and, after the warps of all blocks have exchanged
// their sums, for the result, which frees the chunks.

#include "hpcdl/cuda/l2_priority.cuh"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/softmax/softmax_device.cuh"

namespace hpcdl::cuda {

/// kBlocks share a row; kConsumers threads of each process kPacks packs of 16 bytes of a chunk; kStages chunks fit the
/// ring.
template <int kBlocks_, int kConsumers_, int kPacks_, int kStages_> struct LongRows {
  static constexpr int kBlocks = kBlocks_, kConsumers = kConsumers_, kPacks = kPacks_, kStages = kStages_;
  static constexpr int kWarps = kConsumers / kWarp, kThreads = kConsumers + kWarp, kChunkPacks = kConsumers * kPacks,
                       kParts = kBlocks * kWarps;
  /// The number of rows that may be announced before all blocks must have received the oldest: when a row is announced,
  /// the one kStages + 1 before it has left the ring of block 0 at the latest, so the warps of all blocks have
  /// synchronised in it.
  static constexpr int kAhead = kStages + 3;
  static constexpr int kShare = (kParts + kWarp - 1) / kWarp;  // parts that a lane adds
  static_assert(kBlocks <= kWarp);
  /// The number of packs of a row that fit.
  static constexpr std::int64_t kMost = std::int64_t{kBlocks} * kStages * kChunkPacks;
};

/// kWhole: all packs are aligned to 16 bytes, so that the copy engine can load them; otherwise the producer warp loads
/// them element by element, at a tenth of the rate. Results have the same bits.
template <class Shape, bool kWhole>
using LongRowsRing =
    std::conditional_t<kWhole, Channel<Shape::kStages, Warps<Shape::kWarps>, Reads::registers>,
                       Channel<Shape::kStages, Threads<Shape::kConsumers>, Reads::ordinary, 1, Threads<kWarp>>>;
template <class Shape, bool kWhole>
using LongRowsMemory = Arena<Room<uint4, Shape::kStages * Shape::kChunkPacks, 128>, Stages<LongRowsRing<Shape, kWhole>>,
                             Stages<Mailbox<2, Shape::kParts * 8>>, Stages<Mailbox<Shape::kAhead, 4>>,
                             Room<float2, 2 * Shape::kParts>, Room<int, Shape::kAhead>>;

#if HPCDL_SM90A

/// One block's part of the rows.
template <class T, class Shape, bool kWhole> struct LongRowsBlock {
  static constexpr int N = kLanes<T>, K = Shape::kPacks;
  static constexpr std::int64_t kGivenUp = 64 << 20;  // larger than L2
  const SoftmaxProblem& p;
  uint4* ring;
  LongRowsRing<Shape, kWhole> chunks;
  Mailbox<2, Shape::kParts * 8> met;
  float2* parts;  // (2, kParts): (top, sum) of all warps of the cluster, for this row and the next
  Ticket<Shape::kAhead> queue;
  int row;                 // the first of the cluster
  int packs, begin, mine;  // packs per row; chunks of this block: [begin, begin + mine)

  /// The number of packs in chunk j of this block.
  __device__ int count(int j) const {
    const int left = packs - (begin + j) * Shape::kChunkPacks;
    return left < Shape::kChunkPacks ? left : Shape::kChunkPacks;
  }
  __device__ std::int64_t column(int j) const { return std::int64_t{begin + j} * Shape::kChunkPacks * N; }

  /// Run by a warp.
  __device__ void produce() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if ((kWhole && lane != 0) || mine == 0) return;
    auto at = chunks.to_put();
    const auto policy = evict_last();
    auto rows = queue;
    for (std::int64_t r = row; r < p.rows;) {
      if (lane == 0 && cluster_rank() == 0) rows.ask();
      for (int j = 0; j < mine; ++j, at.next()) {
        const T* from = static_cast<const T*>(p.x) + r * p.x_stride + column(j);
        uint4* to = ring + at.stage * Shape::kChunkPacks;
        const int here = count(j);
        if constexpr (kWhole) {
          const auto bytes = static_cast<unsigned>(here) * 16;
          bulk_load(to, from, bytes, chunks.put(at, bytes), policy);
        } else {
          chunks.wait_empty(at);
#pragma unroll 4
          for (int i = lane; i < here; i += kWarp)
            to[i] = __builtin_bit_cast(uint4, cuda::read<N>(from + i * N, 0, N, T{}));
          chunks.filled(at);
        }
      }
      r = rows.next(false);
    }
  }
  /// Reads this thread's packs of a chunk; elements beyond the row are `rest`.
  __device__ void read(Pack<T, N> (&v)[K], int stage, int here, T rest) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = k * Shape::kConsumers + static_cast<int>(threadIdx.x);
      if (i < here) {
        v[k] = __builtin_bit_cast(Pack<T, N>, ring[stage * Shape::kChunkPacks + i]);
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) v[k].set(e, rest);
      }
    }
  }
  /// Gives up the lines of chunk j of row r, which has been read. L2 holds those of the last rows when the kernel ends:
  /// earlier ones have been evicted.
  __device__ void give_up(std::int64_t r, int j) const {
    if ((p.rows - r) * packs * 16 > kGivenUp) return;
    const auto* x = reinterpret_cast<const char*>(static_cast<const T*>(p.x) + r * p.x_stride + column(j));
    const char* first = x - reinterpret_cast<std::uintptr_t>(x) % kL2Line;
    for (int i = static_cast<int>(threadIdx.x); i < count(j) * 16 / kL2Line; i += Shape::kConsumers)
      evict_as_others(first + i * kL2Line);
  }
  __device__ void consume() const {
    const auto exponent = SoftmaxExponent::of<T>(p.scale);
    const T rest = narrow<T>(p.scale < 0 ? kInf : -kInf);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const unsigned rank = cluster_rank();
    Ring<Shape::kStages> at;
    Ring<2> turn;
    auto rows = queue;
    for (std::int64_t r = row; r < p.rows; r = rows.next(threadIdx.x == 0), turn.next()) {
      auto again = at;
      float top = -kInf, sum = 0;
      for (int j = 0; j < mine; ++j, at.next()) {
        Pack<T, N> in[K];
        chunks.get(at);
        read(in, at.stage, count(j), rest);
        float higher = top;
#pragma unroll
        for (int k = 0; k < K; ++k) exponent.negate(in[k]), higher = fmaxf(higher, largest(in[k]));
        const float shift = finite(higher);
        sum *= exponent.between(top, shift);
#pragma unroll
        for (int k = 0; k < K; ++k) sum += cuda::sum(exponent(widen(in[k]), shift));
        top = higher;
      }
      const float of_warp = warp_reduce(top, Max{});
      sum = warp_reduce(sum * exponent.between(top, finite(of_warp)), Sum{});
      if (lane < Shape::kBlocks)
        send_to(static_cast<unsigned>(lane),
                parts + turn.stage * Shape::kParts + rank * Shape::kWarps + static_cast<unsigned>(warp),
                met.full + turn.stage, {of_warp, sum});
      met.get(turn, threadIdx.x == 0);
      float2 part[Shape::kShare];
      top = -kInf, sum = 0;
#pragma unroll
      for (int i = 0; i < Shape::kShare; ++i) {
        part[i] =
            i * kWarp + lane < Shape::kParts ? parts[turn.stage * Shape::kParts + i * kWarp + lane] : float2{-kInf, 0};
        top = fmaxf(top, part[i].x);
      }
      const float shift = finite(warp_reduce(top, Max{}));
#pragma unroll
      for (int i = 0; i < Shape::kShare; ++i) sum += part[i].y * exponent.between(part[i].x, shift);
      const Lanes<N> inverse(1.0f / warp_reduce(sum, Sum{}));
      T* y = static_cast<T*>(p.y) + r * p.y_stride;
      for (int j = 0; j < mine; ++j, again.next()) {
        Pack<T, N> in[K];
        const int here = count(j);
        read(in, again.stage, here, rest);
        chunks.done(again.stage);
        if constexpr (kWhole) give_up(r, j);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const int i = k * Shape::kConsumers + static_cast<int>(threadIdx.x);
          exponent.negate(in[k]);
          if (i >= here) continue;
          const auto out = pack<T>(exponent(widen(in[k]), shift) * inverse);
          if constexpr (kWhole) write_aligned(y + column(j) + i * N, out);
          else write(y + column(j) + i * N, out, 0, N);
        }
      }
    }
  }
};

#endif

/// Rows of whole packs, at most Shape::kMost of them, that see all columns.
template <class T, class Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    forward_long_rows(const __grid_constant__ SoftmaxProblem p, int* counter) {
#if HPCDL_SM90A
  const LongRowsMemory<Shape, kWhole> memory;
  memory.template start<Shape::kBlocks>();
  const int packs = static_cast<int>(p.cols / kLanes<T>),
            chunks = (packs + Shape::kChunkPacks - 1) / Shape::kChunkPacks;
  const int per = (chunks + Shape::kBlocks - 1) / Shape::kBlocks, begin = static_cast<int>(cluster_rank()) * per,
            left = chunks - begin;
  const LongRowsBlock<T, Shape, kWhole> block{p,
                                              memory.template part<0>(),
                                              memory.template part<1>(),
                                              memory.template part<2>(),
                                              memory.template part<4>(),
                                              {memory.template part<5>(), counter, memory.template part<3>(),
                                               static_cast<int>(gridDim.x) / Shape::kBlocks, Shape::kBlocks},
                                              static_cast<int>(blockIdx.x) / Shape::kBlocks,
                                              packs,
                                              begin,
                                              left < 0     ? 0
                                              : left < per ? left
                                                           : per};
  roles<Producers<0, 1, kWarp>, Consumers<Shape::kWarps / 4, 0>>([&](int) { block.produce(); },
                                                                 [&](int) { block.consume(); });
  __syncwarp();
  cluster_sync();  // no block may exit while others send to it
#endif
}

/// Calls f with the shape for rows of this many packs; false if none can hold them. Room for half of the next row next
/// to the current one keeps memory busy; with fewer blocks per row there is less waiting. Measured on an H200, relative
/// to a copy: 0.985 with 131072 columns of bf16 (2 blocks), 0.99 of f32 (4), where ordinary eviction of lines from L2
/// reaches 0.95 and 0.955, and clusters that hold a row in registers and are restarted for each reach 0.72 to 0.81.
/// Staggered rows, other cache hints and computing the sum of the next row alongside the result of this one changed
/// nothing; smaller chunks, results that the copy engine stores from the ring, and two half-sized blocks per
/// multiprocessor were slower.
template <class F> bool with_long_rows(std::int64_t packs, F&& f) {
  using Two = LongRows<2, 512, 2, 13>;
  using Four = LongRows<4, 512, 2, 13>;
  using Eight = LongRows<8, 512, 2, 13>;
  if (packs <= 16384) f.template operator()<Two>();
  else if (packs <= 32768) f.template operator()<Four>();
  else if (packs <= Eight::kMost) f.template operator()<Eight>();
  return packs <= Eight::kMost;
}

/// As many clusters as the GPU runs at a time, or as there are rows.
template <class T, class Shape> void run_long_rows(Stream& s, const SoftmaxProblem& p, bool whole, const char* name) {
  const auto kernel = whole ? forward_long_rows<T, Shape, true> : forward_long_rows<T, Shape, false>;
  constexpr int kBytes = LongRowsMemory<Shape, true>::kBytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name);
  cudaLaunchConfig_t config{};
  config.gridDim = Shape::kBlocks, config.blockDim = Shape::kThreads, config.dynamicSmemBytes = kBytes,
  config.stream = queue(s);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Shape::kBlocks, 1, 1};
  config.attrs = &cluster, config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), name);
  config.gridDim.x = Shape::kBlocks * static_cast<unsigned>(p.rows < clusters ? p.rows : clusters);
  int* counter = static_cast<int*>(workspace(s));
  check(cudaMemsetAsync(counter, 0, sizeof(int), config.stream), name);
  check(cudaLaunchKernelEx(&config, kernel, p, counter), name);
}

}  // namespace hpcdl::cuda
