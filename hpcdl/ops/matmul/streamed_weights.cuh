#pragma once
// Up to 128 rows of x (M, K) times weights (N, K) of the same 16-bit type on Hopper's tensor cores (.cu files): bound by
// reading the weights once. The weights are the rows of the products and x their columns:
//   sums (N, M) = W (N, K) x^T (K, M).
// A block has 64 pairs of rows of W for each of its warpgroups. If there are few blocks, a cluster of them divides k and
// adds the shares through shared memory, in order. A block fills its stages with constant weights before the previous
// kernel has ended.
//
// It pays where it joins products: with 64 rows of bf16, q, k and v with their norm, rotation and pages take 23.2 us, not
// 37.1 as separate ops (4096 to 6144 columns), gate and up with theirs 67.4, not 71.3 (4096 to 2 x 14336). Alone, products
// of 64 x 4096 x 4096 and 64 x 4096 x 14336 take 21.5 and 43.3 us, by cuBLASLt 12.3 and 35.7 (H200).
//
// `Pairs` defines the rows of a pair and the use of their sums:
//
//   count                     the number of pairs
//   box                       32 or 64: so many pairs from a multiple of it on are neighbouring rows of two matrices
//   place(u)                  the rows of pair u
//   finish<N>(row, u, a, b)   called with the sums of pairs u, ..., u + N - 1 and a row of x

#include <algorithm>
#include <atomic>
#include <span>

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/matmul/row_pairs.h"
#include "hpcdl/tensor.h"

namespace hpcdl::cuda {

/// kRows: of x, 16 to 128. Two blocks with one warpgroup run on a multiprocessor, or one with two, where each stage of x
/// serves twice as many weights.
template <class E_, int kRows_, int kGroups_> struct StreamShape {
  using E = E_;
  static constexpr int kRows = kRows_, kGroups = kGroups_, kPairs = 64 * kGroups, kDepth = 64;
  static constexpr int kPieceBytes = 64 * kDepth * 2, kWeightBytes = 2 * kGroups * kPieceBytes,
                       kStageBytes = kWeightBytes + kRows * kDepth * 2;
  static constexpr int kBlocks = 3 - kGroups, kStages = 208 * 1024 / kBlocks / kStageBytes;
  static constexpr int kThreads = 128 * kGroups + kWarp;
  static constexpr int kApart = 2 * kPairs + 4;  // floats from the sums of one row of x to the next
  static_assert(kRows * kApart * 4 <= kStages * kStageBytes);
};

template <class S>
struct StreamMemory : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>,
                            Stages<Channel<S::kStages, Warps<4 * S::kGroups>, Reads::tensor_cores>>> {
  /// 64 rows of 64 elements of the first (side 0) or second rows of the pairs of a warpgroup.
  __device__ unsigned char* weights(int stage, int group, int side) const {
    return this->template part<0>() + stage * S::kStageBytes + (2 * group + side) * S::kPieceBytes;
  }
  __device__ unsigned char* rows(int stage) const { return weights(stage, 0, 0) + S::kWeightBytes; }
  /// In the place of stages that have been read: those of row `row` of x, `pair` of the block.
  __device__ float* sums(int row, int pair, int side) const {
    return reinterpret_cast<float*>(this->template part<0>()) + row * S::kApart + pair / 64 * 128 + side * 64 +
           pair % 64;
  }
  __device__ auto stages() const { return this->template part<1>(); }
};

template <class Pairs> struct StreamProblem {
  TensorMap x, w[kMostMatrices];
  Pairs pairs;
  int rows = 0, k_blocks = 0, shares = 1;  // of x; of kDepth; blocks of a cluster, which divide k
  bool constant = false;                   // no kernel writes the weights
};

#if HPCDL_SM90A

/// The range of blocks of k of one block.
struct StreamShare {
  int begin, end;
  template <class P>
  __device__ StreamShare(const P& p, int rank)
      : begin(p.k_blocks * rank / p.shares), end(p.k_blocks * (rank + 1) / p.shares) {}
};

template <class S, class Pairs>
__device__ void bring_weights(const StreamProblem<Pairs>& p, const StreamMemory<S>& memory, int tile, int k_block,
                              int stage, Barrier* full) {
  constexpr int kOutside = 1 << 30;  // such rows are read as zeros
  for (int first = 0; first < S::kPairs; first += p.pairs.box) {
    const int u = tile * S::kPairs + first;
    const PairPlace at = u < p.pairs.count ? p.pairs.place(u) : PairPlace{{0, 0}, {kOutside, kOutside}};
#pragma unroll
    for (int side = 0; side < 2; ++side)
      tma_load(memory.weights(stage, first / 64, side) + first % 64 * 128, p.w[at.matrix[side]], full,
               k_block * S::kDepth, at.row[side]);
  }
}

/// The producer thread.
template <class S, class Pairs>
__device__ void stream_stages(const StreamProblem<Pairs>& p, const StreamMemory<S>& memory, int tile,
                              const StreamShare& share) {
  const auto stages = memory.stages();
  auto at = stages.to_put();
  const int early = ::min(share.end, share.begin + S::kStages);
  if (!p.constant) await_previous();
  for (int kb = share.begin; kb < early; ++kb, at.next())
    bring_weights<S>(p, memory, tile, kb, at.stage, stages.put(at, S::kStageBytes));
  await_previous();
  for (int kb = share.begin; kb < early; ++kb)
    tma_load(memory.rows(kb - share.begin), p.x, stages.full + (kb - share.begin), kb * S::kDepth, 0);
  for (int kb = early; kb < share.end; ++kb, at.next()) {
    Barrier* const full = stages.put(at, S::kStageBytes);
    bring_weights<S>(p, memory, tile, kb, at.stage, full);
    tma_load(memory.rows(at.stage), p.x, full, kb * S::kDepth, 0);
  }
}

/// A warpgroup's products, whose sums it leaves in shared memory.
template <class S> __device__ void multiply_stages(const StreamMemory<S>& memory, const StreamShare& share, int group) {
  const auto stages = memory.stages();
  Ring<S::kStages> at;
  float sums[2][S::kRows / 2];
  int before = -1;
  for (int kb = share.begin; kb < share.end; ++kb, at.next()) {
    stages.get(at);
    const auto x = wgmma_descriptor<Major::k>(memory.rows(at.stage));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kDepth / 16; ++k)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        wgmma<typename S::E, Major::k, Major::k>(
            sums[side], wgmma_descriptor<Major::k>(memory.weights(at.stage, group, side)) + k * kStepK, x + k * kStepK,
            k > 0 || kb > share.begin);
    wgmma_commit();
    wgmma_wait<1>();
    if (before >= 0) stages.done(before);
    before = at.stage;
  }
  wgmma_wait<0>();
  wgmma_pin(sums[0]), wgmma_pin(sums[1]);
  named_sync(1, 128 * S::kGroups);  // all have read the stages
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            pair = 64 * group + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane / 4;
#pragma unroll
  for (int side = 0; side < 2; ++side)
#pragma unroll
    for (int i = 0; i < S::kRows / 2; ++i)
      *memory.sums(i / 4 * 8 + lane % 4 * 2 + i % 2, pair + i % 4 / 2 * 8, side) = sums[side][i];
}

/// Four floats at p in block `rank` of the cluster.
__device__ inline Lanes<4> read_four(const float* p, int rank) {
  Lanes<4> v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.v[0]), "=f"(v.v[1]), "=f"(v.v[2]), "=f"(v.v[3])
               : "r"(address_at(static_cast<unsigned>(rank), p))
               : "memory");
  return v;
}

/// Adds the shares of every p.shares-th row of x.
template <class S, class Pairs>
__device__ void finish_rows(const StreamProblem<Pairs>& p, const StreamMemory<S>& memory, int tile, int rank) {
  constexpr int kEach = S::kPairs / 4, kAtOnce = 128 * S::kGroups / kEach;  // threads of a row; rows
  const int pair = static_cast<int>(threadIdx.x) % kEach * 4, u = tile * S::kPairs + pair;
  if (u >= p.pairs.count) return;
  for (int row = rank + static_cast<int>(threadIdx.x) / kEach * p.shares; row < p.rows; row += kAtOnce * p.shares) {
    const float *const first = memory.sums(row, pair, 0), *const second = memory.sums(row, pair, 1);
    Lanes<4> a = read_four(first, 0), b = read_four(second, 0);
    for (int r = 1; r < p.shares; ++r) a = a + read_four(first, r), b = b + read_four(second, r);
    p.pairs.template finish<4>(row, u, a, b);
  }
}

#endif

template <class S, class Pairs>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    streamed_weights(const __grid_constant__ StreamProblem<Pairs> p) {
#if HPCDL_SM90A
  const StreamMemory<S> memory;
  let_next_begin();
  const int rank = p.shares > 1 ? static_cast<int>(cluster_rank()) : 0, tile = static_cast<int>(blockIdx.x) / p.shares;
  const StreamShare share(p, rank);
  memory.start(p.x, p.w[0]);
  const auto consume = [&](int group) {
    multiply_stages<S>(memory, share, group);
    await_previous();
    if (p.shares > 1) cluster_sync();
    else named_sync(1, 128 * S::kGroups);
    finish_rows<S>(p, memory, tile, rank);
    __syncwarp();
    if (p.shares > 1) cluster_sync();  // other blocks may still read this block's sums
  };
  roles<Producers<0>, Consumers<S::kGroups, 0>>([&](int) { stream_stages<S>(p, memory, tile, share); }, consume);
  if (threadIdx.x >= 128 * S::kGroups) await_previous();
#endif
}

inline constexpr int kMostShares = 8;  // blocks of a cluster

/// Whether start_streamed<E, kMostRows>() takes x and these weights.
template <int kMostRows> bool can_stream(const Stream& s, const View& x, std::span<const View> weights) {
  constexpr std::int64_t kLeast = 64, kMost = 1 << 30;
  const auto fits = [&](const View& v) {
    return v.dtype() == x.dtype() && v.cols() == x.cols() && v.rows() > 0 && v.rows() < kMost &&
           mappable(v.data(), v.dtype(), v.row_stride());
  };
  return has_sm90a(s) && dtype_bytes(x.dtype()) == 2 && x.rows() <= kMostRows && x.cols() >= kLeast &&
         x.cols() < kMost && fits(x) && std::ranges::all_of(weights, fits);
}

template <class S, class Pairs> Launch stream_launch(std::int64_t tiles, int shares) {
  return {.grid = static_cast<unsigned>(tiles * shares),
          .block = S::kThreads,
          .shared = StreamMemory<S>::kBytes,
          .cluster = static_cast<unsigned>(shares)};
}

/// The number of clusters of such a launch that the current GPU runs at once; 0: none.
template <class... P> int most_clusters(void (*kernel)(P...), const Launch& l) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {l.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = l.cluster, config.blockDim = l.block, config.dynamicSmemBytes = l.shared;
  config.attrs = &cluster, config.numAttrs = 1;
  int n = 0;
  check(cudaOccupancyMaxActiveClusters(&n, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return n;
}

/// The largest number of clusters of `shares` blocks that the GPU runs at once, which is asked for once.
template <class S, class Pairs> int clusters_at_once(const Stream& s, int shares) {
  static std::atomic<short> known[64][kMostShares + 1];
  auto& answer = known[s.device().index % 64][shares];
  if (answer == 0)
    answer = static_cast<short>(most_clusters(streamed_weights<S, Pairs>, stream_launch<S, Pairs>(1, shares)));
  return answer;
}

template <class S, class Pairs>
void start_stream(Stream& s, const View& x, std::span<const View> weights, const Pairs& pairs, bool constant,
                  const char* name) {
  const auto map = [](const View& v, int rows) {
    return tensor_map(v.data(), v.dtype(), {v.cols(), v.rows()}, {v.row_stride()}, {S::kDepth, rows});
  };
  constexpr auto kKernel = streamed_weights<S, Pairs>;
  allow_shared<kKernel>(s, StreamMemory<S>::kBytes);
  constexpr int kLeast = 4;  // blocks of k of a share
  const std::int64_t tiles = (pairs.count + S::kPairs - 1) / S::kPairs;
  const int k_blocks = static_cast<int>((x.cols() + S::kDepth - 1) / S::kDepth);
  int shares = std::clamp(k_blocks / kLeast, 1, kMostShares);
  while (shares > 1 && clusters_at_once<S, Pairs>(s, shares) < tiles) --shares;
  StreamProblem<Pairs> p{.x = map(x, S::kRows),
                         .w = {},
                         .pairs = pairs,
                         .rows = static_cast<int>(x.rows()),
                         .k_blocks = k_blocks,
                         .shares = shares,
                         .constant = constant};
  for (std::size_t i = 0; i < weights.size(); ++i) p.w[i] = map(weights[i], pairs.box);
  launch_overlapped(queue(s), true, kKernel, stream_launch<S, Pairs>(tiles, shares), name, p);
}

/// Multiplies x, of type E, by these matrices, if can_stream().
template <class E, int kMostRows, class Pairs>
void start_streamed(Stream& s, const View& x, std::span<const View> weights, const Pairs& pairs, bool constant,
                    const char* name) {
  static_assert(kMostRows == 64 || kMostRows == 128);
  if (x.rows() <= 16) start_stream<StreamShape<E, 16, 2>>(s, x, weights, pairs, constant, name);
  else if (x.rows() <= 32) start_stream<StreamShape<E, 32, 2>>(s, x, weights, pairs, constant, name);
  else if (kMostRows == 64 || x.rows() <= 64) start_stream<StreamShape<E, 64, 1>>(s, x, weights, pairs, constant, name);
  else if constexpr (kMostRows == 128) start_stream<StreamShape<E, 128, 2>>(s, x, weights, pairs, constant, name);
}

}  // namespace hpcdl::cuda
