#include "hpcdl/ops/fp8_quantize/f8_tile.cuh"

namespace hpcdl::cuda {
namespace {

// The first pass, where there is one, measures rows of q or the whole tensor; the second rounds.

constexpr int kSide = F8Tile<float>::kSide, kThreads = F8Tile<float>::kThreads, kWarps = F8Tile<float>::kWarps,
              kRows = F8Tile<float>::kRows, kEach = F8Tile<float>::kEach;

struct Operands {
  F8Source from;
  F8Target to;
  float* scale;
  const float* amax;  // of the tensor or of the rows of q; null: measured within a tile
  float* measured;    // of the first pass
  Fp8Scaling scaling;
  bool transposed;
};

template <class T> __global__ void __launch_bounds__(kThreads) measure(Operands o) {
  __shared__ float shared[kWarps][kSide];
  F8Tile<T> t(o.from);
  t.load();
  if (o.scaling == Fp8Scaling::tensor) {
    const float most = t.of_tile(shared[0]);
    if (threadIdx.x == 0) raise(o.measured, most);
  } else if (o.transposed) {
    float most[kEach];
    t.of_columns(most, shared);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (t.warp == 0 && t.col() + j < o.from.cols) raise(o.measured + t.col() + j, most[j]);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float most = t.of_row(i);
      if (t.lane == 0 && t.row(i) < o.from.rows) raise(o.measured + t.row(i), most);
    }
  }
}

template <class T, class F> __global__ void __launch_bounds__(kThreads) round_tiles(Operands o) {
  __shared__ float shared[kWarps][kSide];
  __shared__ F8Turned turned;
  F8Tile<T> t(o.from);
  t.load();
  const bool one = o.scaling == Fp8Scaling::tensor || o.scaling == Fp8Scaling::blocks;  // scale of the tile
  const bool first_row = t.tile.row == 0, first_col = t.tile.column == 0;
  float scale = 1, of_column[kEach];
  if (one) {
    scale = f8_scale<F>(o.scaling == Fp8Scaling::tensor ? *o.amax : t.of_tile(shared[0]));
    if (threadIdx.x == 0) {
      if (o.scaling == Fp8Scaling::blocks)
        o.scale[o.transposed ? static_cast<long long>(t.tile.column) * gridDim.x + t.tile.row
                             : static_cast<long long>(t.tile.row) * gridDim.y + t.tile.column] = scale;
      else if (first_row && first_col) *o.scale = scale;
    }
  } else if (o.transposed) {  // of each row of q, a column of x
    if (o.scaling == Fp8Scaling::row_blocks) t.of_columns(of_column, shared);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const long long r = t.col() + j;
      if (o.scaling == Fp8Scaling::row) of_column[j] = r < o.from.cols ? o.amax[r] : 0.0f;
      of_column[j] = f8_scale<F>(of_column[j]);
      if (t.warp != 0 || r >= o.from.cols) continue;
      if (o.scaling == Fp8Scaling::row_blocks) o.scale[r * gridDim.x + t.tile.row] = of_column[j];
      else if (first_row) o.scale[r] = of_column[j];
    }
  }
  unsigned columns[kEach] = {};  // four rows of each column
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const long long row = t.row(i);
    if (!one && !o.transposed) {
      scale = f8_scale<F>(o.scaling == Fp8Scaling::row_blocks ? t.of_row(i) : row < o.from.rows ? o.amax[row] : 0.0f);
      if (t.lane == 0 && row < o.from.rows) {
        if (o.scaling == Fp8Scaling::row_blocks) o.scale[row * gridDim.y + t.tile.column] = scale;
        else if (first_col) o.scale[row] = scale;
      }
    }
    const float inverse = 1 / scale;
    unsigned four = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float by = !one && o.transposed ? 1 / of_column[j] : inverse;
      const unsigned code = to_f8<F>(t.v[i][j] * by).bits;
      four |= code << (8 * j), columns[j] = columns[j] >> 8 | code << 24;
    }
    if (!o.transposed) put_four(t, i, o.to, four);
    else if (i % 4 == 3)
#pragma unroll
      for (int j = 0; j < kEach; ++j) turned.at(t.lane * kEach + j, (t.warp * kRows + i) / 4) = columns[j];
  }
  if (!o.transposed) return;
  __syncthreads();
  turned.store(t, o.to);
}

__global__ void as_of_zeros(float* scale, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) scale[i] = 1;
}

}  // namespace

void fp8_quantize(Stream& s, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Fp8Quantize::Args& a) {
  const bool measures = measured.size() > 0;
  float* const most = measures ? measured.ptr<float>() : nullptr;
  const Operands o{f8_source(x), f8_target(q), scale.ptr<float>(), measures ? most : amax ? amax.ptr<float>() : nullptr,
                   most,         a.scaling,    a.transposed};
  const dim3 grid(blocks_for(o.from.rows, kSide), blocks_for(o.from.cols, kSide));
  require(grid.y <= 65535, Fp8Quantize::name, "x must have fewer than {} columns, got {}", 65535LL * kSide,
          o.from.cols);
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
