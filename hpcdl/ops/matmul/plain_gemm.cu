#include "hpcdl/ops/matmul/plain_gemm.cuh"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"

// The kernel for every shape, stride and mix of types: tiles of A and B pass through registers, where they are
// converted, into shared memory, one tile ahead of the products; 16-bit products use mma.sync (sm_80 and later), f32
// products plain fused multiply-adds.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

/// Loads eight neighbours of an operand; those outside are 0.
__device__ Lanes<8> eight(const GemmOperand& o, std::int64_t offset, std::int64_t n) {
  if (n <= 0) return Lanes<8>(0.0f);
  const int count = n < 8 ? static_cast<int>(n) : 8;
  if (o.dtype == DType::f16) return load<8>(static_cast<const f16*>(o.data) + offset, count);
  return o.dtype == DType::bf16 ? load<8>(static_cast<const bf16*>(o.data) + offset, count)
                                : load<8>(static_cast<const float*>(o.data) + offset, count);
}

/// What one thread loads of a tile of kRows rows ("rows" run along m or n) by kDepth of k: chunks of eight neighbours.
template <int kRows, int kDepth> struct Carried {
  static constexpr int kChunks = kRows * kDepth / 8 / kThreads;
  Lanes<8> chunk[kChunks];

  /// The first row and the first k of chunk c.
  __device__ static void place(bool along_k, int c, int& row, int& depth) {
    const int i = static_cast<int>(threadIdx.x) + c * kThreads;
    if (along_k) row = i / (kDepth / 8), depth = i % (kDepth / 8) * 8;
    else depth = i / (kRows / 8), row = i % (kRows / 8) * 8;
  }
  /// Reads the tile at (row0, k0) of an operand of `rows` x `k`, whose element (row, k) is at row * ld + k if
  /// `along_k`, else at k * ld + row.
  __device__ void read(const GemmOperand& o, bool along_k, std::int64_t base, std::int64_t row0, std::int64_t k0,
                       std::int64_t rows, std::int64_t k) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      int r, d;
      place(along_k, c, r, d);
      if (along_k)
        chunk[c] = row0 + r < rows ? eight(o, base + (row0 + r) * o.ld + k0 + d, k - k0 - d) : Lanes<8>(0.0f);
      else chunk[c] = k0 + d < k ? eight(o, base + (k0 + d) * o.ld + row0 + r, rows - row0 - r) : Lanes<8>(0.0f);
    }
  }
  template <class T, int kStride> __device__ void write(T (*tile)[kStride], bool along_k) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      int r, d;
      place(along_k, c, r, d);
      if (along_k) {
        store(&tile[r][d], chunk[c]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) tile[r + i][d] = narrow<T>(chunk[c].v[i]);
      }
    }
  }
};

/// Row 1 of a thread's sums becomes row 0, and so on. The epilogue is long: a loop over rows contains it once for all
/// rows, in a quarter of the code.
template <class Row, int kRows> __device__ void next_row(Row (&acc)[kRows]) {
#pragma unroll
  for (int i = 0; i + 1 < kRows; ++i) acc[i] = acc[i + 1];
}

/// 128 x 128 of D per block; warps in 2 x 4, each with 64 x 32 of it. E: bf16 or f16.
template <class E, class T> __global__ void __launch_bounds__(kThreads) gemm_16(const __grid_constant__ Gemm g) {
  constexpr int kTile = 128, kDepth = 32, kStride = kDepth + 8;
  __shared__ alignas(16) E as[2][kTile][kStride], bs[2][kTile][kStride];
  const std::int64_t m0 = std::int64_t{blockIdx.y} * kTile, n0 = std::int64_t{blockIdx.x} * kTile, batch = blockIdx.z;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, wm = warp / 4 * 64,
            wn = warp % 4 * 32;
  struct Rows {
    float tile[4][4] = {};  // of 16 rows by 8 columns each
  } acc[4];
  Carried<kTile, kDepth> a, b;
  const auto read = [&](std::int64_t k0) {
    a.read(g.a, !g.a.transposed, batch * g.a.batch_stride, m0, k0, g.m, g.k);
    b.read(g.b, g.b.transposed, batch * g.b.batch_stride, n0, k0, g.n, g.k);
  };
  read(0);
  int stage = 0;
  for (std::int64_t k0 = 0; k0 < g.k; k0 += kDepth, stage ^= 1) {
    a.write(as[stage], !g.a.transposed);
    b.write(bs[stage], g.b.transposed);
    __syncthreads();
    if (k0 + kDepth < g.k) read(k0 + kDepth);
#pragma unroll
    for (int kk = 0; kk < kDepth; kk += 16) {
      unsigned fa[4][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices(fa[i], shared_address(&as[stage][wm + i * 16 + lane % 16][kk + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < 2; ++j)
        load_matrices(fb[j], shared_address(&bs[stage][wn + j * 16 + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8]));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          mma_16x8x16<E>(acc[i].tile[j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::int64_t row = m0 + wm + i * 16 + lane / 4 + e / 2 * 8, col = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
        if (row < g.m && col < g.n) finish<T>(g.out, acc[0].tile[j][e], row, col, batch);
      }
    next_row(acc);
  }
}

/// 64 x 64 of D per block, 4 x 4 of it per thread.
template <class T> __global__ void __launch_bounds__(kThreads) gemm_f32(const __grid_constant__ Gemm g) {
  constexpr int kTile = 64, kDepth = 32, kStride = kDepth + 4;
  __shared__ alignas(16) float as[kTile][kStride], bs[kTile][kStride];
  const std::int64_t m0 = std::int64_t{blockIdx.y} * kTile, n0 = std::int64_t{blockIdx.x} * kTile, batch = blockIdx.z;
  const int tm = static_cast<int>(threadIdx.x) / 16, tn = static_cast<int>(threadIdx.x) % 16;
  Lanes<4> acc[4];
#pragma unroll
  for (auto& row : acc) row = Lanes<4>(0.0f);
  Carried<kTile, kDepth> a, b;
  const auto read = [&](std::int64_t k0) {
    a.read(g.a, !g.a.transposed, batch * g.a.batch_stride, m0, k0, g.m, g.k);
    b.read(g.b, g.b.transposed, batch * g.b.batch_stride, n0, k0, g.n, g.k);
  };
  read(0);
  for (std::int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    __syncthreads();
    a.write(as, !g.a.transposed);
    b.write(bs, g.b.transposed);
    __syncthreads();
    if (k0 + kDepth < g.k) read(k0 + kDepth);
#pragma unroll 8
    for (int kk = 0; kk < kDepth; ++kk) {
      float va[4], vb[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) va[i] = as[tm + i * 16][kk], vb[i] = bs[tn + i * 16][kk];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i].v[j] = ::fmaf(va[i], vb[j], acc[i].v[j]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::int64_t row = m0 + tm + i * 16, col = n0 + tn + j * 16;
      if (row < g.m && col < g.n) finish<T>(g.out, acc[0].v[j], row, col, batch);
    }
    next_row(acc);
  }
}

}  // namespace

void plain_gemm(Stream& s, const Gemm& g) {
  if (fits_few_rows(g)) return few_rows_gemm(s, g);
  if (fits_small_gemm(g)) return small_gemm(s, g);
  plain_tile_gemm(s, g);
}

void plain_tile_gemm(Stream& s, const Gemm& g) {
  const std::int64_t tile = g.compute == DType::f32 ? 64 : 128;
  const std::int64_t rows = (g.m + tile - 1) / tile;
  require(rows <= 65535 && g.batch <= 65535, "matmul", "{} x {} matrices of {} rows are more than one launch can have",
          g.batch, g.m, g.n);
  const dim3 grid(blocks_for(g.n, tile), static_cast<unsigned>(rows), static_cast<unsigned>(g.batch));
  visit_dtype(g.out.dtype, [&]<class T>() {
    if (g.compute == DType::bf16) gemm_16<bf16, T><<<grid, kThreads, 0, queue(s)>>>(g);
    else if (g.compute == DType::f16) gemm_16<f16, T><<<grid, kThreads, 0, queue(s)>>>(g);
    else gemm_f32<T><<<grid, kThreads, 0, queue(s)>>>(g);
  });
  launched("matmul");
}

}  // namespace hpcdl::cuda
