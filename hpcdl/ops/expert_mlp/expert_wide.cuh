#pragma once
// Products of a mixture whose experts have many choices each, dense and in 16-bit types, on Hopper's tensor cores: tiles
// of 128 choices of one expert by 256 rows of its matrices, which are 128 of gate and the same 128 of up, or 256 of down.
// What choices multiply lies expert by expert, so that the copy engine can bring it. A block iterates over tiles, and the
// loads of the next tile overlap the stores of the last one.

#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma.cuh"
#include "hpcdl/ops/expert_mlp/tile_of_expert.cuh"
#include "hpcdl/ops/expert_mlp/whole_pieces.cuh"
#include "hpcdl/ops/fuse/activations.h"

namespace hpcdl::cuda {

struct WideProduct : Choices {
  TensorMap from;  // (choices, K), expert by expert
  TensorMap first[kMostWideExperts], second[kMostWideExperts];
  void* to;         // hidden values expert by expert, or a row of results per choice
  void *gate, *up;  // as in MixtureProduct
  int n, k;         // columns of `to`, of `from`
  int columns;      // tiles of a row
  bool gelu;
};
static_assert(sizeof(WideProduct) < 32 << 10);  // kernel parameters

/// The number of choices of all experts before this one. Called by whole warps.
__device__ inline int choices_before(const Choices& p, int expert) {
  int sum = 0;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < expert; e += kWarp) sum += p.count(e);
  return warp_reduce(sum, Sum{});
}

template <class T_, bool kGated_> struct WideShape {
  using T = T_;
  static constexpr bool kGated = kGated_;
  static constexpr int kRows = 128, kColumns = 256, kDepth = 64, kStages = 4, kConsumers = 2,
                       kThreads = 128 * (kConsumers + 1), kHalf = kColumns / 2;
  static constexpr int kResults = kGated ? kHalf : kColumns;  // columns of the result
  static constexpr int kLine = kDepth * 2, kABytes = kRows * kLine, kStageBytes = kABytes + kColumns * kLine;
};
template <class S>
struct WideMemory : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>,
                          Stages<Channel<S::kStages, Warps<S::kConsumers * 4>, Reads::tensor_cores>>> {
  __device__ unsigned char* a(int stage) const { return this->template part<0>() + stage * S::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + S::kABytes; }
  __device__ auto stages() const { return this->template part<1>(); }
};

#if HPCDL_SM90A

/// A tile of this block, and the row of `from` where it begins.
struct WideTile : TileOfExpert {
  int row = 0;

  /// f(tile) for all of them. Called by whole warps.
  template <class S, class F> __device__ static void for_each(const WideProduct& p, F&& f) {
    for (int i = static_cast<int>(blockIdx.x);; i += static_cast<int>(gridDim.x)) {
      const TileOfExpert found = find(p, i, S::kRows, p.columns);
      if (found.expert < 0) return;
      f(WideTile{found, choices_before(p, found.expert) + found.first});
    }
  }
};

template <class S> __device__ void produce(const WideProduct& p, const WideMemory<S>& memory) {
  const auto stages = memory.stages();
  auto at = stages.to_put();
  const bool loads = threadIdx.x % kWarp == 0;
  WideTile::for_each<S>(p, [&](const WideTile& tile) {
    const int n0 = tile.column * S::kResults;
    const TensorMap &first = p.first[tile.expert], &second = S::kGated ? p.second[tile.expert] : first;
    for (int k = 0; loads && k < p.k; k += S::kDepth, at.next()) {
      Barrier* const full = stages.put(at, S::kStageBytes);
      tma_load(memory.a(at.stage), p.from, full, k, tile.row);
      tma_load(memory.b(at.stage), first, full, k, n0);
      tma_load(memory.b(at.stage) + S::kHalf * S::kLine, second, full, k, S::kGated ? n0 : n0 + S::kHalf);
    }
    __syncwarp();
  });
}

/// Writes a warpgroup's sums of a tile.
template <class S> __device__ void write(const WideProduct& p, const WideTile& tile, const float (&sums)[128]) {
  using T = typename S::T;
  const int warp = warp_index(), lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
    const bool there = tile.first + row < tile.count, by_choice = there && (!S::kGated || p.gate);
    const std::int64_t choice = by_choice ? p.list(tile.expert)[tile.first + row] : 0;
    const auto result = [&](int j) { return map<2>([&](int e) { return sums[4 * j + 2 * half + e]; }); };
    const auto put = [&](void* to, std::int64_t to_row, auto&& pair) {
      for_each_piece<T, S::kResults>(pair, [&](int in_tile, const Pack<T, 8>& piece) {
        const int column = tile.column * S::kResults + in_tile;
        if (there && column < p.n) write_aligned(static_cast<T*>(to) + to_row * p.n + column, piece);
      });
    };
    const std::int64_t to_row = S::kGated ? tile.row + row : choice;
    if constexpr (S::kGated) {
      const auto up = [&](int j) { return result(j + S::kHalf / 8); };
      if (p.gate) put(p.gate, choice, result), put(p.up, choice, up);
      put(p.to, to_row, [&](int j) {
        const auto v = widen(pack<T>(result(j)));
        return (p.gelu ? fuse::GeluTanh::value(v) : fuse::Silu::value(v)) * widen(pack<T>(up(j)));
      });
    } else {
      put(p.to, to_row, result);
    }
  }
}

template <class S> __device__ void consume(const WideProduct& p, const WideMemory<S>& memory, int group) {
  const auto stages = memory.stages();
  Ring<S::kStages> at;
  WideTile::for_each<S>(p, [&](const WideTile& tile) {
    float sums[S::kColumns / 2];
    int before = -1;
    for (int k = 0; k < p.k; k += S::kDepth, at.next()) {
      stages.get(at);
      const auto a = wgmma_descriptor<Major::k>(memory.a(at.stage) + group * 64 * S::kLine),
                 b = wgmma_descriptor<Major::k>(memory.b(at.stage));
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < S::kDepth / 16; ++i)
        wgmma<typename S::T, Major::k, Major::k>(sums, a + i * kStepK, b + i * kStepK, k > 0 || i > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0) stages.done(before);
      before = at.stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    stages.done(before);
    write<S>(p, tile, sums);
  });
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) expert_wide(const __grid_constant__ WideProduct p) {
#if HPCDL_SM90A
  const WideMemory<S> memory;
  memory.start(p.from);
  roles<Producers<40, 1, kWarp>, Consumers<S::kConsumers, 232>>([&](int) { produce<S>(p, memory); },
                                                                [&](int group) { consume<S>(p, memory, group); });
#endif
}

}  // namespace hpcdl::cuda
