#pragma once
// The kernel of an implicit GEMM (device_gather.h says of what): tiles of A and B come from global memory by asynchronous copies, kConvStages
// of them under way, and are multiplied by mma.sync (16-bit) or fused multiply-adds (f32), both with f32 sums. The copies of 16 bytes
// need neighbours that lie in one piece; where channels or addresses do not allow that, elements are gathered one by one.

#include "hpcdl/cuda/element.h"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/conv2d/device_gather.h"
#include "hpcdl/ops/conv2d/own_conv.h"
#include "hpcdl/ops/conv2d/device_tiles.h"

namespace hpcdl::cuda {

/// What follows the sums.
struct ConvResult {
  void* d = nullptr;
  DType dtype = DType::f32;
  bool accumulate = false, pairs = false;  // pairs: two neighbouring columns can be stored at once
  ConvOperand bias;                        // of a column
  std::int64_t share_step = 0;             // elements from one share of the sums to the next
};

template <class A, class B> struct ConvProduct {
  A a;
  B b;
  const void* a_data;
  const void* b_data;
  DType a_dtype, b_dtype;
  Scatter rows;
  int depth, share_depth, tiles_n;
  ConvResult out;
};

namespace conv_detail {

__device__ inline void copy_16(void* to, const void* from, bool there) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copies_issued() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last N groups of copies have arrived.
template <int N> __device__ void copies_arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/// Four 8 x 8 matrices, transposed where memory has k outermost.
template <bool kAlongK> __device__ void load_matrices(unsigned (&r)[4], const void* p) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(p));
  if constexpr (kAlongK)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
template <class E> __device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<E, bf16>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Global memory as ConvBrings reads it.
template <class E> struct FromGlobal {
  const void* data;
  DType dtype;
  __device__ void chunk(E* to, std::int64_t from) const { copy_16(to, static_cast<const E*>(data) + (from < 0 ? 0 : from), from >= 0); }
  __device__ void elements(E* to, const std::int64_t (&from)[kConvChunk<E>]) const {
    Pack<E, kConvChunk<E>> v{};
#pragma unroll
    for (int e = 0; e < kConvChunk<E>; ++e) v.set(e, narrow<E>(from[e] < 0 ? 0.0f : fetch(data, dtype, from[e])));
    *reinterpret_cast<uint4*>(to) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
  }
};

/// A sum, or two neighbours, on their way to memory.
__device__ inline void finish(const ConvResult& o, std::int64_t at, int col, float v) {
  if (o.bias.data) v += fetch(o.bias.data, o.bias.dtype, col);
  if (o.accumulate) v += fetch(o.d, o.dtype, at);
  put(o.d, o.dtype, at, v);
}
template <class T> __device__ void put_pair(void* d, std::int64_t at, float a, float b) {
  Lanes<2> v;
  v.v[0] = a, v.v[1] = b;
  write_aligned(static_cast<T*>(d) + at, pack<T>(v));
}
__device__ inline void finish(const ConvResult& o, std::int64_t at, int col, int columns, float a, float b) {
  if (!o.pairs || col + 1 >= columns) {
    if (col < columns) finish(o, at, col, a);
    if (col + 1 < columns) finish(o, at + 1, col + 1, b);
    return;
  }
  if (o.bias.data) a += fetch(o.bias.data, o.bias.dtype, col), b += fetch(o.bias.data, o.bias.dtype, col + 1);
  if (o.accumulate) a += fetch(o.d, o.dtype, at), b += fetch(o.d, o.dtype, at + 1);
  if (o.dtype == DType::bf16) put_pair<bf16>(o.d, at, a, b);
  else if (o.dtype == DType::f16) put_pair<f16>(o.d, at, a, b);
  else put_pair<float>(o.d, at, a, b);
}

/// Sums of one thread, 16-bit products.
template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB> struct MmaSums {
  using Grid = MmaGrid<kM, kN, kWarpsM, kWarpsN>;
  using TileA = ConvTile<E, kM, kA>;
  using TileB = ConvTile<E, kN, kB>;
  float acc[Grid::kTilesM][Grid::kTilesN][4] = {};

  __device__ void add(const E* a, const E* b) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int kk = 0; kk < TileA::kDepth; kk += 16) {
      unsigned fa[Grid::kTilesM][4], fb[Grid::kTilesN / 2][4];
#pragma unroll
      for (int i = 0; i < Grid::kTilesM; ++i) {
        const auto p = Grid::template a<kA>(warp, lane, i);
        load_matrices<kA>(fa[i], a + TileA::at(p.row, kk + p.depth));
      }
#pragma unroll
      for (int j = 0; j < Grid::kTilesN / 2; ++j) {
        const auto p = Grid::template b<kB>(warp, lane, j);
        load_matrices<kB>(fb[j], b + TileB::at(p.row, kk + p.depth));
      }
#pragma unroll
      for (int i = 0; i < Grid::kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < Grid::kTilesN; ++j) multiply<E>(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  __device__ void store(const Scatter& rows, const ConvResult& o, int m0, int n0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < Grid::kTilesM; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = rows.at(m0 + Grid::row(warp, lane, i, half));
        if (row < 0) continue;
#pragma unroll
        for (int j = 0; j < Grid::kTilesN; ++j) {
          const int col = n0 + Grid::col(warp, lane, j);
          finish(o, row + col, col, rows.columns, acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
        }
      }
  }
};

/// Sums of one thread, f32 products.
template <int kM, int kN, bool kA, bool kB> struct FmaSums {
  using Grid = FmaGrid<kM, kN>;
  using TileA = ConvTile<float, kM, kA>;
  using TileB = ConvTile<float, kN, kB>;
  float acc[Grid::kRows][Grid::kCols] = {};

  /// Four of k for the thread's rows of an operand.
  template <class Tile, bool kAlongK, int kCount> __device__ static void four(float (&v)[4][kCount], const float* tile, int t, int kk) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4 q = *reinterpret_cast<const float4*>(tile + Tile::at(Grid::template spot<true>(t, i), kk));
        v[0][i] = q.x, v[1][i] = q.y, v[2][i] = q.z, v[3][i] = q.w;
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
          const float4 q = *reinterpret_cast<const float4*>(tile + Tile::at(Grid::template spot<false>(t, i), kk + k));
          v[k][i] = q.x, v[k][i + 1] = q.y, v[k][i + 2] = q.z, v[k][i + 3] = q.w;
        }
    }
  }
  __device__ void add(const float* a, const float* b) {
    const int tm = static_cast<int>(threadIdx.x) / 16, tn = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int kk = 0; kk < TileA::kDepth; kk += 4) {
      float va[4][Grid::kRows], vb[4][Grid::kCols];
      four<TileA, kA>(va, a, tm, kk);
      four<TileB, kB>(vb, b, tn, kk);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < Grid::kRows; ++i)
#pragma unroll
          for (int j = 0; j < Grid::kCols; ++j) acc[i][j] = ::fmaf(va[k][i], vb[k][j], acc[i][j]);
    }
  }
  __device__ void store(const Scatter& rows, const ConvResult& o, int m0, int n0) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Grid::kRows; ++i) {
      const std::int64_t row = rows.at(m0 + Grid::template row<kA>(thread, i));
      if (row < 0) continue;
#pragma unroll
      for (int j = 0; j < Grid::kCols; ++j) {
        const int col = n0 + Grid::template col<kB>(thread, j);
        if (col < rows.columns) finish(o, row + col, col, acc[i][j]);
      }
    }
  }
};

template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB> struct SumsOf {
  using type = MmaSums<E, kM, kN, kWarpsM, kWarpsN, kA, kB>;
};
template <int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB> struct SumsOf<float, kM, kN, kWarpsM, kWarpsN, kA, kB> {
  using type = FmaSums<kM, kN, kA, kB>;
};

}  // namespace conv_detail

/// Elements of shared memory of all stages.
template <class E, class A, class B, int kM, int kN>
inline constexpr int kConvStageElements = ConvTile<E, kM, A::kAlongK>::kElements + ConvTile<E, kN, B::kAlongK>::kElements;

/// kM x kN results of one share of the depth per block. blockIdx.x: tiles, those of one row of them after each other, so that they read
/// the same pixels at about the same time; blockIdx.y: shares.
template <class E, class A, class B, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB>
__global__ void __launch_bounds__(kConvThreads, kWholeA && kWholeB ? 2 : 1) conv_kernel(const __grid_constant__ ConvProduct<A, B> p) {
  extern __shared__ uint4 memory[];
  constexpr int kStage = kConvStageElements<E, A, B, kM, kN>, kOfA = ConvTile<E, kM, A::kAlongK>::kElements, kDepth = kConvDepth<E>;
  E* const tiles = reinterpret_cast<E*>(memory);
  const int m0 = static_cast<int>(blockIdx.x) / p.tiles_n * kM, n0 = static_cast<int>(blockIdx.x) % p.tiles_n * kN;
  const int first = static_cast<int>(blockIdx.y) * p.share_depth, left = p.depth - first;
  const int steps = ((left < p.share_depth ? left : p.share_depth) + kDepth - 1) / kDepth;
  const int thread = static_cast<int>(threadIdx.x);
  const ConvBrings<E, A, kM, kWholeA> a(p.a, m0, thread);
  const ConvBrings<E, B, kN, kWholeB> b(p.b, n0, thread);
  const conv_detail::FromGlobal<E> of_a{p.a_data, p.a_dtype}, of_b{p.b_data, p.b_dtype};
  const auto bring = [&](int step) {
    if (step < steps) {
      E* const to = tiles + step % kConvStages * kStage;
      a.issue(first + step * kDepth, to, of_a);
      b.issue(first + step * kDepth, to + kOfA, of_b);
    }
    conv_detail::copies_issued();
  };
  typename conv_detail::SumsOf<E, kM, kN, kWarpsM, kWarpsN, A::kAlongK, B::kAlongK>::type sums;
  for (int step = 0; step < kConvStages - 1; ++step) bring(step);
  for (int step = 0; step < steps; ++step) {
    conv_detail::copies_arrived<kConvStages - 2>();
    __syncthreads();  // the tiles of this step are there for all, and all are done with those of the last one
    bring(step + kConvStages - 1);
    const E* const from = tiles + step % kConvStages * kStage;
    sums.add(from, from + kOfA);
  }
  ConvResult out = p.out;
  if (out.share_step) out.d = static_cast<float*>(out.d) + blockIdx.y * out.share_step;
  sums.store(p.rows, out, m0, n0);
}

template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB, class A, class B>
void launch_conv(Stream& s, const ConvProduct<A, B>& p, int shares, const char* name) {
  const auto kernel = conv_kernel<E, A, B, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>;
  constexpr int kBytes = kConvStages * kConvStageElements<E, A, B, kM, kN> * static_cast<int>(sizeof(E));
  static_assert(kBytes <= 81 << 10);  // two blocks to a multiprocessor of every GPU from the A100 on
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name);
  const std::int64_t tiles = (std::int64_t{p.rows.rows} + kM - 1) / kM * p.tiles_n;
  kernel<<<dim3(blocks_for(tiles, 1), static_cast<unsigned>(shares)), kConvThreads, kBytes, queue(s)>>>(p);
  launched(name);
}

inline int tiles_of(std::int64_t n, int tile) { return static_cast<int>((n + tile - 1) / tile); }

/// Rows of `columns` elements of an operand that copies of 16 bytes can read.
inline bool in_chunks(const ConvOperand& o, DType compute, std::int64_t columns) {
  return o.dtype == compute && reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0 && columns * dtype_bytes(compute) % 16 == 0;
}

/// Where the result goes; rows begin at multiples of `columns` elements.
inline ConvResult result_of(const Conv& c, std::int64_t columns) {
  return {.d = c.out, .dtype = c.out_dtype, .accumulate = c.accumulate,
          .pairs = columns % 2 == 0 && reinterpret_cast<std::uintptr_t>(c.out) % (2 * static_cast<std::uintptr_t>(dtype_bytes(c.out_dtype))) == 0, .bias = c.bias};
}

}  // namespace hpcdl::cuda
