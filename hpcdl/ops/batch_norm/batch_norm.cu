#include "hpcdl/ops/batch_norm/batch_norm.h"

#include "hpcdl/ops/batch_norm/blocks.cuh"

namespace hpcdl::cuda {
namespace {

/// Part p of (parts, 3, C): the first row of the share, the mean relative to it, the sum of squared deviations from the
/// mean.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kBlockThreads, kBlocks)
    moments(float* partial, const T* x, std::int64_t stride, Shares shares, std::int64_t cols) {
  constexpr int N = kPack;
  const Place<T, kWhole> place(shares, cols, blockIdx.y);
  Lanes<N> origin(0.0f), sum(0.0f), squares(0.0f);
  if (place.n > 0) origin = widen(place.load(x, stride, place.begin));
  constexpr int kRows = 2 * kUnrolled;  // per operand
  Pack<T, N> v[kRows];
  place.template rows<kRows>([&](std::int64_t r, int k) { v[k] = place.load(x, stride, r); },
                             [&](std::int64_t, int k) {
                               const auto d = widen(v[k]) - origin;
                               sum = sum + d, squares = fma(d, d, squares);
                             });
  sum_columns(sum, squares);
  if (threadIdx.y != 0 || place.n == 0) return;
  const auto mean = sum * Lanes<N>(1.0f / static_cast<float>(place.end - place.begin));
  const auto within = map<N>([&](int i) {
    return fmaxf(squares.v[i] - sum.v[i] * mean.v[i], 0.0f) + (squares.v[i] - squares.v[i]);
  });  // NaN stays NaN
  float* to = partial + std::int64_t{blockIdx.y} * 3 * cols + place.col;
  store(to, origin, place.n), store(to + cols, mean, place.n), store(to + 2 * cols, within, place.n);
}

struct Merged {
  float count = 0, offset = 0, squares = 0;
  __device__ void add(float n, float other, float other_squares) {
    if (n == 0) return;
    const float all = count + n, delta = other - offset;
    squares += other_squares + delta * delta * (count * (n / all));
    offset = fmaf(delta, n / all, offset);
    count = all;
  }
};

constexpr int kPartsOfThread = (kMostBatchParts + kWarp - 1) / kWarp;

/// The sum over the warps of a block, in order, for each column; called by all threads.
__device__ float sum_warps(float (&memory)[kWarp][kWarp + 1], float v) {
  __syncthreads();
  memory[threadIdx.y][threadIdx.x] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarp; ++w) sum += memory[w][threadIdx.x];
  return sum;
}

/// A block processes 32 channels; its warps take every 32nd part. First computes the overall mean relative to the first
/// part's origin, then the squares about it: for each part its own plus those of its distance.
__global__ void __launch_bounds__(kWarp* kWarp)
    merge_moments(float* mean, float* var, float* unbiased, const float* partial, std::int64_t parts, std::int64_t rows,
                  Shares shares, std::int64_t cols) {
  __shared__ float memory[kWarp][kWarp + 1];
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const bool exists = col < cols;
  const float base = exists ? partial[col] : 0.0f;
  float offset[kPartsOfThread], count[kPartsOfThread], squares = 0, sum = 0;
#pragma unroll
  for (int i = 0; i < kPartsOfThread; ++i) {
    const std::int64_t p = threadIdx.y + i * kWarp;
    offset[i] = count[i] = 0;
    if (!exists || p >= parts) continue;
    const float* from = partial + p * 3 * cols + col;
    count[i] = static_cast<float>(shares.count(p));
    offset[i] = (from[0] - base) + from[cols];
    squares += from[2 * cols];
  }
#pragma unroll
  for (int i = 0; i < kPartsOfThread; ++i) sum = fmaf(count[i], offset[i], sum);
  const float middle = sum_warps(memory, sum) / static_cast<float>(rows);
#pragma unroll
  for (int i = 0; i < kPartsOfThread; ++i) squares = fmaf(count[i] * (offset[i] - middle), offset[i] - middle, squares);
  const float all = sum_warps(memory, squares);
  if (threadIdx.y != 0 || !exists) return;
  mean[col] = base + middle;
  var[col] = all / static_cast<float>(rows);
  if (unbiased) unbiased[col] = all / static_cast<float>(rows - 1);
}

/// One thread per channel: there are as many parts as ranks.
__global__ void merge_parts(float* mean, float* var, float* unbiased, const float* parts, std::int64_t n,
                            std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  const float base = parts[col];
  Merged all;
  for (std::int64_t p = 0; p < n; ++p) {
    const float* from = parts + p * 3 * cols + col;
    const float count = from[2 * cols];
    all.add(count, from[0] - base, from[cols] * count);
  }
  mean[col] = base + all.offset;
  var[col] = all.squares / all.count;
  unbiased[col] = all.squares / (all.count - 1.0f);
}

struct Forward {
  void* y;
  const void *x, *residual;
  const float *mean, *var;
  Parameter weight, bias;
  Shares shares;
  std::int64_t cols, y_stride, x_stride, residual_stride;
  float eps;
  bool relu;
};

/// Starts with the rows that the statistics read last, which are still in the L2 cache.
template <class T, bool kWhole> __global__ void __launch_bounds__(kBlockThreads, kBlocks) normalise(Forward o) {
  constexpr int N = kPack;
  const Place<T, kWhole> place(o.shares, o.cols, gridDim.y - 1 - blockIdx.y);
  if (place.n == 0) return;
  const ChannelLanes<N> ch(o.mean, o.var, o.weight, o.bias, o.eps, place.col, place.n);
  const T *x = static_cast<const T*>(o.x), *residual = static_cast<const T*>(o.residual);
  Pack<T, N> v[kUnrolled], add[kUnrolled];
  place.rows(
      [&](std::int64_t r, int k) {
        v[k] = place.load(x, o.x_stride, r);
        if (residual) add[k] = place.load(residual, o.residual_stride, r);
      },
      [&](std::int64_t r, int k) {
        auto out = ch.normalised(widen(v[k]) - ch.mean);
        if (residual) out = out + widen(add[k]);
        if (o.relu) out = max(out, Lanes<N>(0.0f));
        place.store(static_cast<T*>(o.y), o.y_stride, r, out);
      });
}

__global__ void move_running(float* mean, float* var, const float* batch_mean, const float* batch_var, float momentum,
                             std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  mean[i] = fmaf(momentum, batch_mean[i], (1.0f - momentum) * mean[i]);
  var[i] = fmaf(momentum, batch_var[i], (1.0f - momentum) * var[i]);
}

}  // namespace

void batch_statistics(Stream& s, Tensor mean, Tensor var, Tensor unbiased, View x, Tensor partial) {
  const std::int64_t rows = x.rows(), cols = x.cols();
  const auto parts = batch_grid(x.spec()).parts;
  visit_dtype(x.dtype(), [&]<class T>() {
    const Grid<T> grid(x, parts);
    const auto kernel = whole_packs<T>(cols, {{x.data(), x.row_stride()}}) ? moments<T, true> : moments<T, false>;
    kernel<<<grid.blocks, grid.threads, 0, queue(s)>>>(partial.ptr<float>(), x.ptr<T>(), x.row_stride(), grid.shares,
                                                       cols);
  });
  launched("batch_statistics");
  merge_moments<<<blocks_for(cols, kWarp), dim3(kWarp, kWarp), 0, queue(s)>>>(
      mean.ptr<float>(), var.ptr<float>(), unbiased ? unbiased.ptr<float>() : nullptr, partial.ptr<float>(), parts,
      rows, Shares(rows, parts), cols);
  launched("batch_statistics.merge");
}

void batch_normalise(Stream& s, const BatchNormForward& o) {
  if (o.x.size() == 0) return;
  Forward f{o.y.data(),
            o.x.data(),
            o.residual.data(),
            o.mean.ptr<float>(),
            o.var.ptr<float>(),
            Parameter(o.weight),
            Parameter(o.bias),
            Shares(0, 0),
            o.x.cols(),
            o.y.row_stride(),
            o.x.row_stride(),
            o.residual ? o.residual.row_stride() : 0,
            o.eps,
            o.relu};
  visit_dtype(o.x.dtype(), [&]<class T>() {
    const Grid<T> grid(o.x, elementwise_parts(s, o.x));
    f.shares = grid.shares;
    const bool whole = whole_packs<T>(f.cols, {{f.x, f.x_stride}, {f.y, f.y_stride}, {f.residual, f.residual_stride}});
    const auto kernel = whole ? normalise<T, true> : normalise<T, false>;
    kernel<<<grid.blocks, grid.threads, 0, queue(s)>>>(f);
  });
  launched("batch_normalise");
}

void merge_statistics(Stream& s, Tensor mean, Tensor var, Tensor unbiased, View parts) {
  merge_parts<<<blocks_for(parts[2], 128), 128, 0, queue(s)>>>(
      mean.ptr<float>(), var.ptr<float>(), unbiased.ptr<float>(), parts.ptr<float>(), parts[0], parts[2]);
  launched("merge_statistics");
}

void running_statistics(Stream& s, Tensor mean, Tensor var, View batch_mean, View batch_var, float momentum) {
  move_running<<<blocks_for(mean.size(), 128), 128, 0, queue(s)>>>(
      mean.ptr<float>(), var.ptr<float>(), batch_mean.ptr<float>(), batch_var.ptr<float>(), momentum, mean.size());
  launched("running_statistics");
}

}  // namespace hpcdl::cuda
