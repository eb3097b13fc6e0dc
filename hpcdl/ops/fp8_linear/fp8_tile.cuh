#pragma once
// The product of 8-bit floats on Hopper's tensor cores (sm_90a): the persistent kernel of ops/matmul/tile_kernel.cuh
// with stages of 128 of k, after each of which the sums of the tensor cores are scaled and added to f32 registers. Two
// warpgroups have 64 rows of every tile each.
//
// The blocks of a cluster of two process tiles one below the other; each loads half of their common tile of B for both.

#include "hpcdl/core/f8.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/cuda/wgmma_f8.cuh"
#include "hpcdl/ops/matmul/tile_epilogue.cuh"

namespace hpcdl::cuda {

/// One kernel: whether scales are those of 128-blocks. Not `promoted`: the sums stay on the tensor cores, for tests.
template <bool kScaledBlocks_, bool kPromoted_ = true> struct Fp8Tile {
  static constexpr bool kScaledBlocks = kScaledBlocks_, kPromoted = kPromoted_;
  static constexpr int kM = 128, kN = 128, kDepth = 128, kStages = 6, kCluster = 2, kConsumers = 2;
  static constexpr int kABytes = kM * kDepth, kBBytes = kN * kDepth, kStageBytes = kABytes + kBBytes;
  static constexpr int kThreads = 128 * (kConsumers + 1), kSums = kN / 2, kPieces = kN / 64;
};

struct Fp8Problem {
  int m = 0, n = 0, k_blocks = 0;
  int tiles_m = 0, tiles_n = 0, group = 8;  // tiles_m in clusters; `group` of them share tiles of B in L2
  const float *a_scale = nullptr, *b_scale = nullptr;
  int a_step = 0, b_step = 0;  // 0: one scale for all rows
  const void *bias = nullptr, *residual = nullptr;
  DType bias_dtype = DType::f32, y_dtype = DType::bf16;
  GemmActivation activation = GemmActivation::none;
  void* y = nullptr;
  long long y_ld = 0, residual_ld = 0;
  float* amax = nullptr;  // 0 at first
  bool whole = false;     // the copy engine can store y, 16-bit
  bool pairs = false;     // two neighbours of y are aligned to their size, and rows are even
  bool residual_pairs = false;
};

struct Fp8Maps {
  TensorMap a, b, y;
};

template <class S>
struct Fp8Memory : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>,
                         Room<unsigned char, S::kConsumers * S::kPieces * kPieceBytes, 1024>,
                         Room<float2, S::kConsumers * S::kN, 16>,
                         Stages<Channel<S::kStages, Warps<S::kConsumers * 4>, Reads::tensor_cores, S::kCluster>>> {
  __device__ unsigned char* a(int stage) const { return this->template part<0>() + stage * S::kStageBytes; }
  __device__ unsigned char* b(int stage) const { return a(stage) + S::kABytes; }
  __device__ unsigned char* out(int group, int i) const {
    return this->template part<1>() + (group * S::kPieces + i) * kPieceBytes;
  }
  /// Scale and bias of the tile's columns, next to each other.
  __device__ float2* columns(int group) const { return this->template part<2>() + group * S::kN; }
  __device__ auto stages() const { return this->template part<3>(); }
};

/// First row and column of tile number t of a cluster, for its block `rank`.
template <class S> struct Fp8Place {
  int m0, n0;
  __device__ Fp8Place(const Fp8Problem& p, int t, int rank) {
    const auto place = InGroups::find(t, p.tiles_m, p.tiles_n, p.group);
    n0 = place.column * S::kN, m0 = (place.row * S::kCluster + rank) * S::kM;
  }
};

#if HPCDL_SM90A

template <class S>
__device__ void fp8_produce(const Fp8Maps& maps, const Fp8Problem& p, const Fp8Memory<S>& memory, int rank) {
  constexpr int kShare = S::kN / S::kCluster;
  const auto stages = memory.stages();
  auto at = stages.to_put();
  for (const int t : Raster<S::kCluster>{p.tiles_m * p.tiles_n}) {
    const Fp8Place<S> tile(p, t, rank);
    for (int kb = 0; kb < p.k_blocks; ++kb, at.next()) {
      Barrier* full = stages.put(at, S::kStageBytes);
      tma_load(memory.a(at.stage), maps.a, full, kb * S::kDepth, tile.m0);
      tma_load_to((1u << S::kCluster) - 1, memory.b(at.stage) + rank * kShare * S::kDepth, maps.b, full, kb * S::kDepth,
                  tile.n0 + rank * kShare);
    }
  }
}

/// What a thread of a warpgroup does with its sums: rows `row` and row + 8, of each 8 columns two neighbours
/// (wgmma.cuh).
template <class S> struct Fp8Writer {
  const Fp8Maps& maps;
  const Fp8Problem& p;
  const Fp8Memory<S>& memory;
  int group, thread;
  Leaving way;
  float amax = 0;
  float2 column = {};  // scale and bias of column `thread` of a tile
  float row_scale[2] = {};

  __device__ int row_of(int m0, int h) const { return m0 + group * 64 + thread / 32 * 16 + thread % 32 / 4 + h * 8; }

  /// Called before the products, which hide the latency.
  __device__ void fetch_scales(const Fp8Place<S>& at) {
    const int col = at.n0 + thread;
    const bool in = col < p.n;
    const float scale = S::kScaledBlocks ? 1.0f : in ? p.b_scale[col * p.b_step] : 0.0f;
    column = make_float2(scale, in && p.bias ? fetch(p.bias, p.bias_dtype, col) : 0.0f);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(at.m0, h);
      row_scale[h] = S::kScaledBlocks ? 1.0f : row < p.m ? p.a_scale[row * p.a_step] : 0.0f;
    }
  }

  __device__ float2 residual_at(int row, int col) const {
    const long long i = row * p.residual_ld + col;
    if (row >= p.m || col >= p.n) return make_float2(0, 0);
    if (p.residual_pairs && col + 1 < p.n) {
      if (p.y_dtype == DType::f32) return *reinterpret_cast<const float2*>(static_cast<const float*>(p.residual) + i);
      const unsigned u = *reinterpret_cast<const unsigned*>(static_cast<const unsigned short*>(p.residual) + i);
      return p.y_dtype == DType::f16 ? make_float2(unpack_low<f16>(u), unpack_high<f16>(u))
                                     : make_float2(unpack_low<bf16>(u), unpack_high<bf16>(u));
    }
    return make_float2(fetch(p.residual, p.y_dtype, i), col + 1 < p.n ? fetch(p.residual, p.y_dtype, i + 1) : 0.0f);
  }
  __device__ void store(int row, int col, float x, float y) const {
    if (row >= p.m || col >= p.n) return;
    const long long i = row * p.y_ld + col;
    if (p.pairs && col + 1 < p.n) {
      if (p.y_dtype == DType::f32) *reinterpret_cast<float2*>(static_cast<float*>(p.y) + i) = make_float2(x, y);
      else
        *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(p.y) + i) =
            p.y_dtype == DType::f16 ? pack_pair<f16>(x, y) : pack_pair<bf16>(x, y);
      return;
    }
    put(p.y, p.y_dtype, i, x);
    if (col + 1 < p.n) put(p.y, p.y_dtype, i + 1, y);
  }

  __device__ void write(const float (&sums)[S::kSums], const Fp8Place<S>& at) {
    way.reuse<0>();  // the tile before has been stored, and its columns read
    memory.columns(group)[thread] = column;
    way.sync();
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
      float v[32];
      const float2* columns = memory.columns(group) + piece * 64 + thread % 4 * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 c = *reinterpret_cast<const float4*>(columns + j * 8);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* sum = sums + piece * 32 + j * 4 + h * 2;
          v[j * 4 + h * 2] = ::fmaf(sum[0], row_scale[h] * c.x, c.y);
          v[j * 4 + h * 2 + 1] = ::fmaf(sum[1], row_scale[h] * c.z, c.w);
        }
      }
      if (p.activation != GemmActivation::none) activate(v, p.activation);
      const int col = at.n0 + piece * 64 + thread % 4 * 2;
      if (p.residual) {
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
          const float2 r = residual_at(row_of(at.m0, i / 2 % 2), col + i / 4 * 8);
          v[i] += r.x, v[i + 1] += r.y;
        }
      }
      if (p.amax) {  // columns outside of y are 0
        const bool in[2] = {row_of(at.m0, 0) < p.m, row_of(at.m0, 1) < p.m};
#pragma unroll
        for (int i = 0; i < 32; ++i)
          if (in[i / 2 % 2]) amax = fmaxf(amax, fabsf(v[i]));
      }
      if (!p.whole) {
#pragma unroll
        for (int i = 0; i < 32; i += 2) store(row_of(at.m0, i / 2 % 2), col + i / 4 * 8, v[i], v[i + 1]);
        continue;
      }
      unsigned char* to = memory.out(group, piece);
      if (p.y_dtype == DType::f16) put_piece<f16>(to, v);
      else put_piece<bf16>(to, v);
      way.leave([&] { tma_store(maps.y, to, at.n0 + piece * 64, at.m0 + group * 64); });
    }
  }
  __device__ void finish() const {
    if (Leaving::leader()) tma_wait_read<0>();
    if (!p.amax) return;
    const float most = warp_reduce(amax, Max());
    if (thread % 32 == 0) atomicMax(reinterpret_cast<unsigned*>(p.amax), __float_as_uint(most));
  }
};

/// A warpgroup's rows of all tiles. Two accumulators take turns, so that the tensor cores multiply into one while the
/// sums of the other are added.
template <class A, class B, class S>
__device__ void fp8_consume(const Fp8Maps& maps, const Fp8Problem& p, const Fp8Memory<S>& memory, int rank, int group) {
  Ring<S::kStages> at;
  const auto stages = memory.stages();
  Fp8Writer<S> writer{maps, p, memory, group, static_cast<int>(threadIdx.x) % 128, {.barrier = 1 + group}};
  using Sums = float[S::kSums];
  for (const int t : Raster<S::kCluster>{p.tiles_m * p.tiles_n}) {
    const Fp8Place<S> tile(p, t, rank);
    Sums sums;
    Sums acc[2];
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) sums[i] = 0;
    writer.fetch_scales(tile);
    [[maybe_unused]] const float *a_scale[2],
        *b_scale = p.b_scale + static_cast<long long>(tile.n0 / S::kN) * p.k_blocks;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = ::min(writer.row_of(tile.m0, h), p.m - 1);
      a_scale[h] = p.a_scale + static_cast<long long>(row) * p.k_blocks;
    }
    int before = 0;  // the stage that the accumulator in flight reads
    float scale[2][2];
    const auto multiply = [&](Sums& to, bool add = false) {
      const auto a = wgmma_descriptor<Major::k>(memory.a(at.stage) + group * 64 * S::kDepth);
      const auto b = wgmma_descriptor<Major::k>(memory.b(at.stage));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < S::kDepth / 32; ++k) wgmma_f8<A, B>(to, a + k * kStepK, b + k * kStepK, k > 0 || add);
      wgmma_commit();
    };
    const auto move_on = [&] {
      before = at.stage;
      at.next();
    };
    const auto promote = [&](const Sums& from, int turn) {
#pragma unroll
      for (int i = 0; i < S::kSums; ++i) {
        float& sum = sums[i];
        if constexpr (S::kScaledBlocks) sum = ::fmaf(from[i], scale[turn][i / 2 % 2], sum);
        else sum += from[i];
      }
    };
    const auto fetch_block_scales = [&](int turn, int kb) {
      if constexpr (S::kScaledBlocks) {
        const float b = b_scale[kb];
        scale[turn][0] = a_scale[0][kb] * b, scale[turn][1] = a_scale[1][kb] * b;
      }
    };
    if constexpr (!S::kPromoted) {
      for (int kb = 0; kb < p.k_blocks; ++kb) {
        stages.get(at);
        multiply(acc[0], kb > 0);
        wgmma_wait<0>();
        move_on();
        stages.done(before);
      }
      wgmma_pin(acc[0]);
      promote(acc[0], 0);
    } else {
      const auto begin = [&](int turn, int kb) {
        fetch_block_scales(turn, kb);
        stages.get(at);
        multiply(acc[turn]);
      };
      const auto end = [&](int turn) {
        wgmma_pin(acc[turn]);
        stages.done(before);
        promote(acc[turn], turn);
      };
      const auto step = [&](int turn, int kb) {
        begin(turn, kb);
        wgmma_wait<1>();
        end(1 - turn);
        move_on();
      };
      begin(0, 0);
      move_on();
      int kb = 1;
      for (; kb + 1 < p.k_blocks; kb += 2) step(1, kb), step(0, kb + 1);
      if (kb < p.k_blocks) {
        step(1, kb);
        wgmma_wait<0>();
        end(1);
      } else {
        wgmma_wait<0>();
        end(0);
      }
    }
    writer.write(sums, tile);
  }
  writer.finish();
}

#endif

template <class A, class B, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    fp8_tiles(const __grid_constant__ Fp8Maps maps, const __grid_constant__ Fp8Problem p) {
#if HPCDL_SM90A
  const Fp8Memory<S> memory;
  const int rank = static_cast<int>(cluster_rank());
  memory.template start<S::kCluster>(maps.a, maps.b, maps.y);
  roles<Producers<24>, Consumers<S::kConsumers, 240>>(
      [&](int) { fp8_produce<S>(maps, p, memory, rank); },
      [&](int group) { fp8_consume<A, B, S>(maps, p, memory, rank, group); });
  __syncwarp();
  cluster_sync();  // no block may exit while another may still write to it
#endif
}

}  // namespace hpcdl::cuda
