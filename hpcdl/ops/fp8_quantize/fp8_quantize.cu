#include <type_traits>

#include "hpcdl/core/f8.h"
#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"

namespace hpcdl::cuda {
namespace {

// A block of 256 threads has a tile of 128 x 128 of x in registers: warp w has rows w, w + 8, ..., a lane four
// neighbouring columns of each. The first pass, where there is one, measures rows of q or the whole tensor; the second
// rounds.

constexpr int kSide = static_cast<int>(Fp8Quantize::kBlock), kThreads = 256, kWarps = kThreads / kWarp,
              kRows = kSide / kWarps, kEach = kSide / kWarp;

struct Operands {
  const void* x;
  void* q;
  float* scale;
  const float* amax;                 // of the tensor or of the rows of q; null: measured within a tile
  float* measured;                   // of the first pass
  long long rows, cols, x_ld, q_ld;  // rows and cols of x
  Fp8Scaling scaling;
  bool transposed, x_whole, q_whole;  // aligned for accesses of kEach elements
};

__device__ void raise(float* to, float x) {  // both are at least 0
  if (x > 0) atomicMax(reinterpret_cast<unsigned*>(to), __float_as_uint(x));
}

template <class T> struct Tile {
  const Operands& o;
  long long row0 = static_cast<long long>(blockIdx.x) * kSide, col0 = static_cast<long long>(blockIdx.y) * kSide;
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  float v[kRows][kEach];

  __device__ explicit Tile(const Operands& operands) : o(operands) {}
  __device__ long long row(int i) const { return row0 + warp + i * kWarps; }
  __device__ long long col() const { return col0 + lane * kEach; }

  /// 0 outside of x.
  __device__ void load() {
    const T* x = static_cast<const T*>(o.x);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (o.x_whole && row(i) < o.rows && col() + kEach <= o.cols) {
        using Four = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
        const Four four = *reinterpret_cast<const Four*>(x + row(i) * o.x_ld + col());
        const T* e = reinterpret_cast<const T*>(&four);
#pragma unroll
        for (int j = 0; j < kEach; ++j) v[i][j] = widen(e[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          v[i][j] = row(i) < o.rows && col() + j < o.cols ? widen(x[row(i) * o.x_ld + col() + j]) : 0.0f;
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

template <class T> __global__ void __launch_bounds__(kThreads) measure(Operands o) {
  __shared__ float shared[kWarps][kSide];
  Tile<T> t(o);
  t.load();
  if (o.scaling == Fp8Scaling::tensor) {
    const float most = t.of_tile(shared[0]);
    if (threadIdx.x == 0) raise(o.measured, most);
  } else if (o.transposed) {
    float most[kEach];
    t.of_columns(most, shared);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (t.warp == 0 && t.col() + j < o.cols) raise(o.measured + t.col() + j, most[j]);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float most = t.of_row(i);
      if (t.lane == 0 && t.row(i) < o.rows) raise(o.measured + t.row(i), most);
    }
  }
}

template <class T, class F> __global__ void __launch_bounds__(kThreads) round_tiles(Operands o) {
  __shared__ float shared[kWarps][kSide];
  __shared__ __align__(16) unsigned char bytes[kSide][kSide + 4];
  Tile<T> t(o);
  t.load();
  const bool one = o.scaling == Fp8Scaling::tensor || o.scaling == Fp8Scaling::blocks;  // scale of the tile
  const bool first_row = blockIdx.x == 0, first_col = blockIdx.y == 0;
  float scale = 1, of_column[kEach];
  if (one) {
    scale = f8_scale<F>(o.scaling == Fp8Scaling::tensor ? *o.amax : t.of_tile(shared[0]));
    if (threadIdx.x == 0) {
      if (o.scaling == Fp8Scaling::blocks)
        o.scale[o.transposed ? static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x
                             : static_cast<long long>(blockIdx.x) * gridDim.y + blockIdx.y] = scale;
      else if (first_row && first_col) *o.scale = scale;
    }
  } else if (o.transposed) {  // of each row of q, a column of x
    if (o.scaling == Fp8Scaling::row_blocks) t.of_columns(of_column, shared);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const long long r = t.col() + j;
      if (o.scaling == Fp8Scaling::row) of_column[j] = r < o.cols ? o.amax[r] : 0.0f;
      of_column[j] = f8_scale<F>(of_column[j]);
      if (t.warp != 0 || r >= o.cols) continue;
      if (o.scaling == Fp8Scaling::row_blocks) o.scale[r * gridDim.x + blockIdx.x] = of_column[j];
      else if (first_row) o.scale[r] = of_column[j];
    }
  }
  F* q = static_cast<F*>(o.q);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const long long row = t.row(i);
    if (!one && !o.transposed) {
      scale = f8_scale<F>(o.scaling == Fp8Scaling::row_blocks ? t.of_row(i) : row < o.rows ? o.amax[row] : 0.0f);
      if (t.lane == 0 && row < o.rows) {
        if (o.scaling == Fp8Scaling::row_blocks) o.scale[row * gridDim.y + blockIdx.y] = scale;
        else if (first_col) o.scale[row] = scale;
      }
    }
    const float inverse = 1 / scale;
    unsigned four = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float by = !one && o.transposed ? 1 / of_column[j] : inverse;
      four |= static_cast<unsigned>(to_f8<F>(t.v[i][j] * by).bits) << (8 * j);
    }
    if (o.transposed) {
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        bytes[t.lane * kEach + j][t.warp + i * kWarps] = static_cast<unsigned char>(four >> (8 * j));
    } else if (row < o.rows) {
      F* to = q + row * o.q_ld + t.col();
      if (o.q_whole && t.col() + kEach <= o.cols) *reinterpret_cast<unsigned*>(to) = four;
      else
        for (int j = 0; j < kEach && t.col() + j < o.cols; ++j) to[j] = F{static_cast<std::uint8_t>(four >> (8 * j))};
    }
  }
  if (!o.transposed) return;
  __syncthreads();
  for (int i = t.warp; i < kSide && t.col0 + i < o.cols; i += kWarps) {  // a row of q
    const long long at = t.row0 + t.lane * kEach;
    F* to = q + (t.col0 + i) * o.q_ld + at;
    if (o.q_whole && at + kEach <= o.rows)
      *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(&bytes[i][t.lane * kEach]);
    else
      for (int j = 0; j < kEach && at + j < o.rows; ++j) to[j] = F{bytes[i][t.lane * kEach + j]};
  }
}

__global__ void as_of_zeros(float* scale, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) scale[i] = 1;
}

}  // namespace

void fp8_quantize(Stream& s, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Fp8Quantize::Args& a) {
  const auto whole = [](const View& v) {
    const auto bytes = static_cast<std::uintptr_t>(kEach * dtype_bytes(v.dtype()));
    return reinterpret_cast<std::uintptr_t>(v.data()) % bytes == 0 && v.row_stride() % kEach == 0;
  };
  const bool measures = measured.size() > 0;
  float* const most = measures ? measured.ptr<float>() : nullptr;
  const Operands o{x.data(),       q.data(),  scale.ptr<float>(), measures ? most : amax ? amax.ptr<float>() : nullptr,
                   most,           x.rows(),  x.cols(),           x.row_stride(),
                   q.row_stride(), a.scaling, a.transposed,       whole(x),
                   whole(q)};
  const dim3 grid(blocks_for(o.rows, kSide), blocks_for(o.cols, kSide));
  require(grid.y <= 65535, Fp8Quantize::name, "x must have fewer than {} columns, got {}", 65535LL * kSide, o.cols);
  if (measures)
    check(cudaMemsetAsync(most, 0, static_cast<std::size_t>(measured.bytes()), queue(s)), "cudaMemsetAsync");
  if (x.size() == 0) {
    if (scale.size() > 0)
      as_of_zeros<<<blocks_for(scale.size(), kThreads), kThreads, 0, queue(s)>>>(o.scale, scale.size());
    return launched("fp8_quantize");
  }
  visit_dtype(x.dtype(), [&]<class T>() {
    if (measures) {
      measure<T><<<grid, kThreads, 0, queue(s)>>>(o);
      launched("fp8_quantize");
    }
    visit_f8(a.to, [&]<class F>() { round_tiles<T, F><<<grid, kThreads, 0, queue(s)>>>(o); });
  });
  launched("fp8_quantize");
}

}  // namespace hpcdl::cuda
