#pragma once
// What the kernels that round to 8-bit floats share: a block of 256 threads has a tile of 128 x 128 of x in registers.
// Warp w has 16 neighbouring rows, a lane four neighbouring columns of each. The grid is (tiles of rows, tiles of
// columns). Blocks that run at the same time have tiles of eight rows of tiles, so that together they read long pieces of
// rows of x and write a KiB of each row of its transpose. In the order of the grid, one column of tiles after the other,
// casts of 16384 x 5632 ran at 1.2 TB/s in bf16, and at 2.0 in f32 (H200).

#include <type_traits>

#include "hpcdl/core/f8.h"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"

namespace hpcdl::cuda {

struct F8Source {
  const void* x = nullptr;
  long long rows = 0, cols = 0, ld = 0;
  bool whole = false;  // aligned for accesses of four elements
};

__device__ inline void raise(float* to, float x) {  // both are at least 0
  if (x > 0) atomicMax(reinterpret_cast<unsigned*>(to), __float_as_uint(x));
}

template <class T> struct F8Tile {
  static constexpr int kSide = static_cast<int>(Fp8Quantize::kBlock), kThreads = 256, kWarps = kThreads / kWarp,
                       kRows = kSide / kWarps, kEach = kSide / kWarp;
  static constexpr int kGroup = 8;
  const F8Source& from;
  const InGroups tile = InGroups::find(static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x),
                                       static_cast<int>(gridDim.x), static_cast<int>(gridDim.y), kGroup);
  long long row0 = static_cast<long long>(tile.row) * kSide, col0 = static_cast<long long>(tile.column) * kSide;
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  float v[kRows][kEach];

  __device__ explicit F8Tile(const F8Source& source) : from(source) {}
  __device__ long long row(int i) const { return row0 + warp * kRows + i; }
  __device__ long long col() const { return col0 + lane * kEach; }

  /// 0 outside of x.
  __device__ void load() {
    const T* x = static_cast<const T*>(from.x);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (from.whole && row(i) < from.rows && col() + kEach <= from.cols) {
        using Four = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
        const Four four = *reinterpret_cast<const Four*>(x + row(i) * from.ld + col());
        const T* e = reinterpret_cast<const T*>(&four);
#pragma unroll
        for (int j = 0; j < kEach; ++j) v[i][j] = widen(e[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          v[i][j] = row(i) < from.rows && col() + j < from.cols ? widen(x[row(i) * from.ld + col() + j]) : 0.0f;
      }
    }
  }
  /// Of one row of the tile: all lanes get it.
  __device__ float of_row(int i) const {
    float most = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) most = fmaxf(most, fabsf(v[i][j]));
    return warp_reduce(most, Max());
  }
  /// Of this lane's columns, over all rows of the tile.
  __device__ void of_columns(float (&most)[kEach], float (*shared)[kSide]) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      most[j] = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) most[j] = fmaxf(most[j], fabsf(v[i][j]));
      shared[warp][lane * kEach + j] = most[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) most[j] = fmaxf(most[j], shared[w][lane * kEach + j]);
  }
  __device__ float of_tile(float* shared) const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) most = fmaxf(most, fabsf(v[i][j]));
    return block_reduce<kThreads>(most, Max(), shared);
  }
};

/// Where q, of the rows and columns of x, or its transpose is stored.
struct F8Target {
  void* q = nullptr;
  long long ld = 0;
  bool whole = false;  // aligned for accesses of four elements
};

/// Four neighbours of one row, as bytes.
template <class T> __device__ inline void put_four(const F8Tile<T>& t, int i, const F8Target& to, unsigned four) {
  if (t.row(i) >= t.from.rows) return;
  auto* at = static_cast<unsigned char*>(to.q) + t.row(i) * to.ld + t.col();
  if (to.whole && t.col() + t.kEach <= t.from.cols) *reinterpret_cast<unsigned*>(at) = four;
  else
    for (int j = 0; j < t.kEach && t.col() + j < t.from.cols; ++j) at[j] = static_cast<unsigned char>(four >> (8 * j));
}

/// A tile of bytes that is written along columns and read along rows, four bytes at a time. A row of words is rotated by
/// a quarter of its number, so that neither has conflicts between banks.
struct F8Turned {
  static constexpr int kSide = static_cast<int>(Fp8Quantize::kBlock), kWords = kSide / 4;
  unsigned words[kSide][kWords];

  /// Rows [4 word, 4 word + 4) of column `col` of x.
  __device__ unsigned& at(int col, int word) { return words[col][(word + col / 4) % kWords]; }
  __device__ unsigned at(int col, int word) const { return words[col][(word + col / 4) % kWords]; }

  /// The tile as rows of the transpose; after a __syncthreads().
  template <class T> __device__ void store(const F8Tile<T>& t, const F8Target& to) const {
    for (int i = t.warp; i < kSide && t.col0 + i < t.from.cols; i += t.kWarps) {
      const long long row = t.row0 + t.lane * 4;
      auto* q = static_cast<unsigned char*>(to.q) + (t.col0 + i) * to.ld + row;
      const unsigned four = at(i, t.lane);
      if (to.whole && row + 4 <= t.from.rows) *reinterpret_cast<unsigned*>(q) = four;
      else
        for (int j = 0; j < 4 && row + j < t.from.rows; ++j) q[j] = static_cast<unsigned char>(four >> (8 * j));
    }
  }
};

inline bool aligned_for_four(const View& v) {
  const auto bytes = static_cast<std::uintptr_t>(4 * dtype_bytes(v.dtype()));
  return reinterpret_cast<std::uintptr_t>(v.data()) % bytes == 0 && v.row_stride() % 4 == 0;
}
inline F8Source f8_source(const View& x) { return {x.data(), x.rows(), x.cols(), x.row_stride(), aligned_for_four(x)}; }
inline F8Target f8_target(const Tensor& q) { return {q.data(), q.row_stride(), aligned_for_four(q)}; }

}  // namespace hpcdl::cuda
