#pragma once
// The kernel of an implicit GEMM (device_gather.h defines the product): tiles of A and B are loaded from global memory
// by asynchronous copies, kConvStages of them in flight, and multiplied by mma.sync with f32 sums. For that an f32
// operand is split into two numbers of 11 bits, of whose products the three larger are computed: an error of at most
// 2^-21 of a term, similar to that of an f32 sum of a few dozen. The 16-byte copies require contiguous neighbours;
// where channels or addresses do not allow that, elements are gathered one by one.

#include <algorithm>

#include "hpcdl/cuda/async_copy.cuh"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/ops/conv2d/device_gather.h"
#include "hpcdl/ops/conv2d/device_tiles.h"
#include "hpcdl/ops/conv2d/implicit_gemm.h"

namespace hpcdl::cuda {

/// How the sums are stored.
struct ConvResult {
  void* d = nullptr;
  DType dtype = DType::f32;
  bool accumulate = false, pairs = false;  // pairs: two neighbouring columns can be stored at once
  ConvOperand bias;                        // one element per column
  std::int64_t share_step = 0;             // elements between shares of the sums
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

/// Loads four 8 x 8 matrices, transposed where memory has k outermost.
template <bool kAlongK> __device__ void load_matrices(unsigned (&r)[4], const void* p) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(p));
  if constexpr (kAlongK)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/// Reads global memory for ConvBrings.
template <class E> struct FromGlobal {
  const void* data;
  DType dtype;
  __device__ void chunk(E* to, std::int64_t from) const {
    copy_16(to, static_cast<const E*>(data) + (from < 0 ? 0 : from), from >= 0);
  }
  __device__ void elements(E* to, const std::int64_t (&from)[kConvChunk<E>]) const {
    Pack<E, kConvChunk<E>> v{};
#pragma unroll
    for (int e = 0; e < kConvChunk<E>; ++e) v.set(e, narrow<E>(from[e] < 0 ? 0.0f : fetch(data, dtype, from[e])));
    *reinterpret_cast<uint4*>(to) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
  }
};

/// Stores a sum, or two neighbouring ones.
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

/// Splits an f32 into two parts: 11 bits, rounded to nearest unless that gives infinity, and the other 12, of which
/// products read 11. An infinity gives NaN.
__device__ inline void split(float v, unsigned& high, unsigned& low) {
  high = (__float_as_uint(v) + (fabsf(v) < 0x1.ffep127f ? 0x1000u : 0)) & 0xffffe000u;
  low = __float_as_uint(v - __uint_as_float(high));
}
__device__ inline void multiply_f32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Sums of one thread.
template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kA, bool kB> struct MmaSums {
  using Grid = MmaGrid<kM, kN, kWarpsM, kWarpsN>;
  using TileA = ConvTile<E, kM, kA>;
  using TileB = ConvTile<E, kN, kB>;
  float acc[Grid::kTilesM][Grid::kTilesN][4] = {};

  __device__ void add(const E* a, const E* b) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (std::is_same_v<E, float>) add_f32(a, b, warp, lane);
    else add_16(a, b, warp, lane);
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

 private:
  __device__ void add_16(const E* a, const E* b, int warp, int lane) {
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
        for (int j = 0; j < Grid::kTilesN; ++j)
          mma_16x8x16<E>(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  __device__ void add_f32(const float* a, const float* b, int warp, int lane) {
#pragma unroll
    for (int kk = 0; kk < TileA::kDepth; kk += 8) {
      unsigned high_b[Grid::kTilesN][2], low_b[Grid::kTilesN][2];
#pragma unroll
      for (int j = 0; j < Grid::kTilesN; ++j)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const auto p = Grid::b_f32(warp, lane, j, q);
          split(b[TileB::at(p.row, kk + p.depth)], high_b[j][q], low_b[j][q]);
        }
#pragma unroll
      for (int i = 0; i < Grid::kTilesM; ++i) {
        unsigned high_a[4], low_a[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const auto p = Grid::a_f32(warp, lane, i, q);
          split(a[TileA::at(p.row, kk + p.depth)], high_a[q], low_a[q]);
        }
        // The small products come first, and no two consecutive ones add to the same sums.
#pragma unroll
        for (int j = 0; j < Grid::kTilesN; ++j) multiply_f32(acc[i][j], low_a, high_b[j]);
#pragma unroll
        for (int j = 0; j < Grid::kTilesN; ++j) multiply_f32(acc[i][j], high_a, low_b[j]);
#pragma unroll
        for (int j = 0; j < Grid::kTilesN; ++j) multiply_f32(acc[i][j], high_a, high_b[j]);
      }
    }
  }
};

}  // namespace conv_detail

/// Elements of shared memory for all stages.
template <class E, class A, class B, int kM, int kN>
inline constexpr int kConvStageElements =
    ConvTile<E, kM, A::kAlongK>::kElements + ConvTile<E, kN, B::kAlongK>::kElements;

/// kM x kN results of one share of the depth per block. blockIdx.x: tiles, those of one row consecutively, so that they
/// read the same pixels at about the same time; blockIdx.y: shares.
template <class E, class A, class B, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB>
__global__ void __launch_bounds__(kConvThreads, kWholeA&& kWholeB ? 2 : 1)
    conv_kernel(const __grid_constant__ ConvProduct<A, B> p) {
  extern __shared__ uint4 memory[];
  constexpr int kStage = kConvStageElements<E, A, B, kM, kN>, kOfA = ConvTile<E, kM, A::kAlongK>::kElements,
                kDepth = kConvDepth<E>;
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
    copies_issued();
  };
  conv_detail::MmaSums<E, kM, kN, kWarpsM, kWarpsN, A::kAlongK, B::kAlongK> sums;
  for (int step = 0; step < kConvStages - 1; ++step) bring(step);
  for (int step = 0; step < steps; ++step) {
    copies_arrived<kConvStages - 2>();
    __syncthreads();  // this step's tiles have arrived; all threads are done with the last step's
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
  static_assert(kBytes <= 81 << 10);  // two blocks per multiprocessor of every GPU from the A100 on
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name);
  const std::int64_t tiles = (std::int64_t{p.rows.rows} + kM - 1) / kM * p.tiles_n;
  kernel<<<dim3(blocks_for(tiles, 1), static_cast<unsigned>(shares)), kConvThreads, kBytes, queue(s)>>>(p);
  launched(name);
}

/// Shares of a depth that fill the GPU, at most `most`.
template <class E>
ConvShares shares_that_fill(Stream& s, std::int64_t tiles, int depth, const ConvSums& sums, int most) {
  const std::int64_t room = std::min<std::int64_t>(conv_parts_room(sums), most);
  const int slots = 2 * multiprocessors(s);
  if (room <= 0 || tiles >= slots) return {.count = 1, .depth = depth};
  return conv_shares(static_cast<int>(tiles), (depth + kConvDepth<E> - 1) / kConvDepth<E>, kConvDepth<E>, slots,
                     static_cast<int>(room));
}
inline ConvResult share_result(const Stream& s, const ConvSums& sums) {
  return {.d = conv_parts(s),
          .dtype = DType::f32,
          .accumulate = false,
          .pairs = sums.columns % 2 == 0,
          .bias = {},
          .share_step = sums.size()};
}

/// The same with the depth in such shares.
template <class E, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeA, bool kWholeB, class A, class B>
void launch_in_shares(Stream& s, ConvProduct<A, B> p, const ConvSums& sums, int most, const char* name) {
  const ConvShares shares =
      shares_that_fill<E>(s, (std::int64_t{p.rows.rows} + kM - 1) / kM * p.tiles_n, p.depth, sums, most);
  p.share_depth = shares.depth;
  if (shares.count == 1) return launch_conv<E, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>(s, p, 1, name);
  p.out = share_result(s, sums);
  launch_conv<E, kM, kN, kWarpsM, kWarpsN, kWholeA, kWholeB>(s, p, shares.count, name);
  add_conv_shares(s, sums, shares.count);
}

inline int tiles_of(std::int64_t n, int tile) { return static_cast<int>((n + tile - 1) / tile); }

/// Whether 16-byte copies can read rows of `columns` elements of an operand.
inline bool in_chunks(const ConvOperand& o, DType compute, std::int64_t columns) {
  return o.dtype == compute && reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0 &&
         columns * dtype_bytes(compute) % 16 == 0;
}

/// Where the result is stored; rows begin at multiples of `columns` elements.
inline ConvResult result_of(const Conv& c, std::int64_t columns) {
  return {.d = c.out,
          .dtype = c.out_dtype,
          .accumulate = c.accumulate,
          .pairs = columns % 2 == 0 && reinterpret_cast<std::uintptr_t>(c.out) %
                                               (2 * static_cast<std::uintptr_t>(dtype_bytes(c.out_dtype))) ==
                                           0,
          .bias = c.bias};
}

}  // namespace hpcdl::cuda
