#include "hpcdl/ops/fp8_cast/fp8_cast.h"
#include "hpcdl/ops/fp8_quantize/f8_tile.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kSide = F8Tile<float>::kSide, kThreads = F8Tile<float>::kThreads, kWarps = F8Tile<float>::kWarps,
              kRows = F8Tile<float>::kRows, kEach = F8Tile<float>::kEach;

struct Operands {
  F8Source from;
  F8Target to, turned;
  float *scales, *amax;
  const float* history;
  long long tensors, column;  // of the history
  long long tiles;            // all of them
  bool both;

  /// By tensor: whether x need not be measured before it is rounded. The threads of a warp call it together.
  __device__ float known() const {
    if (!history) return 0;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    static_assert(kAmaxSteps <= kWarp);
    return warp_reduce(lane < kAmaxSteps ? history[(1 + lane) * tensors + column] : 0.0f, Max());
  }
  __device__ float& amax_of(const InGroups& tile) const {
    return amax[static_cast<long long>(tile.row) * gridDim.y + tile.column];
  }
};

template <class T> __global__ void __launch_bounds__(kThreads) measure_tiles(Operands o) {
  __shared__ float shared[kWarps];
  if (o.known() > 0) return;
  F8Tile<T> t(o.from);
  t.load();
  const float most = t.of_tile(shared);
  if (threadIdx.x == 0) o.amax_of(t.tile) = most;
}

template <class T> __global__ void __launch_bounds__(kThreads) measure_rows(Operands o) {
  __shared__ float shared[kWarps][kSide];
  F8Tile<T> t(o.from);
  t.load();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float most = t.of_row(i);
    if (t.lane == 0 && t.row(i) < o.from.rows) raise(o.amax + t.row(i), most);
  }
  if (!o.both) return;
  float most[kEach];
  t.of_columns(most, shared);
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (t.warp == 0 && t.col() + j < o.from.cols) raise(o.amax + o.from.rows + t.col() + j, most[j]);
}

/// The codes of a tile in both orders; by(i, j): what element (i, j) of a thread is multiplied by in q, and turned(j) in
/// the transpose.
template <class F, class T, class By, class Turned>
__device__ void store_both(const Operands& o, const F8Tile<T>& t, F8Turned& memory, By by, Turned turned) {
  unsigned columns[kEach] = {};  // four rows of each column
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    unsigned four = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const unsigned code = to_f8<F>(t.v[i][j] * by(i)).bits, other = turned(i, j, code);
      four |= code << (8 * j), columns[j] = columns[j] >> 8 | other << 24;
    }
    put_four(t, i, o.to, four);
    if (o.both && i % 4 == 3)
#pragma unroll
      for (int j = 0; j < kEach; ++j) memory.at(t.lane * kEach + j, (t.warp * kRows + i) / 4) = columns[j];
  }
  if (!o.both) return;
  __syncthreads();
  memory.store(t, o.turned);
}

template <class T, class F> __global__ void __launch_bounds__(kThreads) cast_by_tensor(Operands o) {
  __shared__ float shared[2][kWarps];
  __shared__ F8Turned turned;
  F8Tile<T> t(o.from);
  t.load();
  float most = o.known();
  if (most > 0) {
    const float here = t.of_tile(shared[0]);
    if (threadIdx.x == 0) o.amax_of(t.tile) = here;
  } else {
    for (long long i = threadIdx.x; i < o.tiles; i += kThreads) most = fmaxf(most, o.amax[i]);
    most = block_reduce<kThreads>(most, Max(), shared[1]);
  }
  const float scale = f8_scale<F>(most), inverse = 1 / scale;
  if (threadIdx.x == 0 && t.tile.row == 0 && t.tile.column == 0) *o.scales = scale;
  store_both<F>(o, t, turned, [&](int) { return inverse; }, [](int, int, unsigned code) { return code; });
}

template <class T, class F> __global__ void __launch_bounds__(kThreads) cast_by_rows(Operands o) {
  __shared__ F8Turned turned;
  F8Tile<T> t(o.from);
  t.load();
  float of_row[kRows], of_column[kEach];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool in = t.row(i) < o.from.rows;
    const float scale = f8_scale<F>(in ? o.amax[t.row(i)] : 0.0f);
    if (in && t.lane == 0 && t.tile.column == 0) o.scales[t.row(i)] = scale;
    of_row[i] = 1 / scale;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const long long col = o.from.rows + t.col() + j;
    const bool in = o.both && t.col() + j < o.from.cols;
    const float scale = f8_scale<F>(in ? o.amax[col] : 0.0f);
    if (in && t.warp == 0 && t.tile.row == 0) o.scales[col] = scale;
    of_column[j] = 1 / scale;
  }
  store_both<F>(
      o, t, turned, [&](int i) { return of_row[i]; },
      [&](int i, int j, unsigned) -> unsigned { return to_f8<F>(t.v[i][j] * of_column[j]).bits; });
}

__global__ void of_nothing(float* scales, long long n, float* amax, long long measured) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) scales[i] = 1;
  if (i < measured) amax[i] = 0;
}

}  // namespace

void fp8_cast(Stream& s, const Fp8CastCall& c) {
  const bool both = c.args.both;
  const Operands o{.from = f8_source(c.x),
                   .to = f8_target(c.q),
                   .turned = both ? f8_target(c.qt) : F8Target(),
                   .scales = c.scales.ptr<float>(),
                   .amax = c.amax.ptr<float>(),
                   .history = c.history ? c.history.ptr<float>() : nullptr,
                   .tensors = c.history ? c.history[1] : 0,
                   .column = c.args.column,
                   .tiles = c.amax.size(),
                   .both = both};
  const dim3 grid(blocks_for(o.from.rows, kSide), blocks_for(o.from.cols, kSide));
  require(grid.y <= 65535, Fp8Cast::name, "x must have fewer than {} columns, got {}", 65535LL * kSide, o.from.cols);
  if (c.x.size() == 0) {
    if (c.scales.size() > 0)
      of_nothing<<<blocks_for(c.scales.size(), kThreads), kThreads, 0, queue(s)>>>(o.scales, c.scales.size(), o.amax,
                                                                                   c.amax.size());
    return launched("fp8_cast");
  }
  if (c.by_rows())
    check(cudaMemsetAsync(o.amax, 0, static_cast<std::size_t>(c.amax.bytes()), queue(s)), "cudaMemsetAsync");
  visit_dtype(c.x.dtype(), [&]<class T>() {
    if (c.by_rows()) measure_rows<T><<<grid, kThreads, 0, queue(s)>>>(o);
    else measure_tiles<T><<<grid, kThreads, 0, queue(s)>>>(o);
    launched("fp8_cast");
    visit_f8(c.args.to, [&]<class F>() {
      if (c.by_rows()) cast_by_rows<T, F><<<grid, kThreads, 0, queue(s)>>>(o);
      else cast_by_tensor<T, F><<<grid, kThreads, 0, queue(s)>>>(o);
    });
  });
  launched("fp8_cast");
}

}  // namespace hpcdl::cuda
