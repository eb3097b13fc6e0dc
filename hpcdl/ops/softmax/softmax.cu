#include "hpcdl/ops/softmax/softmax.h"

#include <cooperative_groups.h>

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/cuda/relative_exp.h"

// A row is read once, into registers of 16 bytes: by a warp, by a block, or, when it is longer than a block's registers, by
// the blocks of a cluster, which exchange their (maximum, sum) through distributed shared memory. Rows beyond that, and long
// rows on GPUs without clusters, are read twice.

namespace hpcdl::cuda {
namespace {

namespace cg = cooperative_groups;

/// The sum of e^(x - top) over some elements, top the largest of them.
struct Part {
  float top, sum;
};
__device__ Part merge(Part a, Part b) {
  const float top = a.top > b.top ? a.top : b.top;
  if (top == -__builtin_inff()) return {top, a.sum + b.sum};
  return {top, a.sum * exp2f((a.top - top) * kLog2e) + b.sum * exp2f((b.top - top) * kLog2e)};
}
__device__ Part warp_merge(Part p) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    p = merge(p, {__shfl_xor_sync(~0u, p.top, offset), __shfl_xor_sync(~0u, p.sum, offset)});
  return p;
}
template <int kThreads> __device__ Part block_merge(Part p, Part* memory) {
  p = warp_merge(p);
  if constexpr (kThreads == kWarp) return p;
  constexpr int kWarps = kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) memory[warp] = p;
  __syncthreads();
  return warp_merge(lane < kWarps ? memory[lane] : Part{-__builtin_inff(), 0});
}

struct Problem {
  void* y;
  const void* x;
  std::int64_t rows, cols, y_stride, x_stride;
  std::int64_t period;  // rows of one causal square; 0: every row sees all columns
  float scale;
  /// Columns that a row sees.
  __device__ std::int64_t seen(std::int64_t row) const { return period == 0 ? cols : row % period + cols - period + 1; }
};

/// kThreads threads of kBlocks blocks hold the row, kPacks accesses each.
template <class T, int kThreads, int kPacks, int kBlocks, int kRows>
__global__ void __launch_bounds__(kThreads* kRows) in_registers(Problem p) {
  constexpr int N = kLanes<T>;
  __shared__ Part memory[kThreads / kWarp];
  __shared__ Part mine;
  const std::int64_t row = kRows > 1 ? std::int64_t{blockIdx.x} * kRows + threadIdx.x / kThreads : blockIdx.x / kBlocks;
  if (row >= p.rows) return;
  const int part = static_cast<int>(blockIdx.x) % kBlocks, thread = static_cast<int>(threadIdx.x) % kThreads;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  const std::int64_t n = p.seen(row), first = (std::int64_t{part} * kThreads * kPacks + thread) * N;

  Lanes<N> v[kPacks];
  float top = -__builtin_inff();
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t left = n - (first + std::int64_t{k} * kThreads * N);
    v[k] = left > 0 ? load<N>(x + first + k * kThreads * N, static_cast<int>(left < N ? left : N), -__builtin_inff() / p.scale)
                    : Lanes<N>(-__builtin_inff() / p.scale);
    v[k] = v[k] * Lanes<N>(p.scale);
    const float m = largest(v[k]);
    top = m > top ? m : top;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k)
#pragma unroll
    for (int i = 0; i < N; ++i) sum += relative_exp(v[k].v[i], top);
  Part all = block_merge<kThreads>({top, sum}, memory);
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) {
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = all;
    cluster.sync();
    all = *cluster.map_shared_rank(&mine, 0);
    for (int b = 1; b < kBlocks; ++b) all = merge(all, *cluster.map_shared_rank(&mine, b));
    cluster.sync();  // no block may end while another reads its memory
  }
#endif
  const float inverse = 1.0f / all.sum;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t at = first + std::int64_t{k} * kThreads * N, left = p.cols - at;
    if (left <= 0) break;
    store(y + at, map<N>([&](int i) { return exp2f((v[k].v[i] - all.top) * kLog2e) * inverse; }), static_cast<int>(left < N ? left : N));
  }
}

template <class T> __global__ void __launch_bounds__(1024) in_two_sweeps(Problem p) {
  constexpr int N = kLanes<T>, kThreads = 1024;
  __shared__ Part memory[kThreads / kWarp];
  const std::int64_t row = blockIdx.x, n = p.seen(row);
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  Part part{-__builtin_inff(), 0};
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < n; at += kThreads * N) {
    const auto v = load<N>(x + at, static_cast<int>(n - at < N ? n - at : N), -__builtin_inff() / p.scale) * Lanes<N>(p.scale);
    const float top = largest(v);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += relative_exp(v.v[i], top);
    part = merge(part, {top, sum});
  }
  const Part all = block_merge<kThreads>(part, memory);
  const float inverse = 1.0f / all.sum;
  for (std::int64_t at = std::int64_t{threadIdx.x} * N; at < p.cols; at += kThreads * N) {
    const int left = static_cast<int>(n - at < N ? n - at : N);
    const auto v = left > 0 ? load<N>(x + at, left) : Lanes<N>(0.0f);
    store(y + at, map<N>([&](int i) { return i < left ? exp2f((v.v[i] * p.scale - all.top) * kLog2e) * inverse : 0.0f; }),
          static_cast<int>(p.cols - at < N ? p.cols - at : N));
  }
}

template <class T, int kThreads, int kPacks, int kBlocks = 1, int kRows = 1> void launch(Stream& s, const Problem& p) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks_for(p.rows * kBlocks, kRows));
  config.blockDim = dim3(kThreads * kRows);
  config.stream = queue(s);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = kBlocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, in_registers<T, kThreads, kPacks, kBlocks, kRows>, p), "softmax");
}

bool has_clusters(const Stream& s) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s.device().index), "cudaDeviceGetAttribute");
  return major >= 9;
}

template <class T> void run(Stream& s, const Problem& p) {
  const std::int64_t packs = (p.cols + kLanes<T> - 1) / kLanes<T>;
  if (packs <= 32) return launch<T, 32, 1, 1, 8>(s, p);
  if (packs <= 64) return launch<T, 32, 2, 1, 8>(s, p);
  if (packs <= 128) return launch<T, 32, 4, 1, 8>(s, p);
  if (packs <= 256) return launch<T, 128, 2>(s, p);
  if (packs <= 512) return launch<T, 128, 4>(s, p);
  if (packs <= 1024) return launch<T, 256, 4>(s, p);
  if (packs <= 2048) return launch<T, 512, 4>(s, p);
  if (packs <= 4096) return launch<T, 1024, 4>(s, p);
  if (has_clusters(s)) {
    if (packs <= 8192) return launch<T, 1024, 4, 2>(s, p);
    if (packs <= 16384) return launch<T, 1024, 4, 4>(s, p);
    if (packs <= 32768) return launch<T, 1024, 4, 8>(s, p);
    if (packs <= 65536) return launch<T, 1024, 8, 8>(s, p);
  }
  in_two_sweeps<T><<<blocks_for(p.rows, 1), 1024, 0, queue(s)>>>(p);
  launched("softmax");
}

/// dx = scale * y * (dy - sum(y dy)); y and dy are read once where a block's registers hold them.
struct BackwardOperands {
  void* dx;
  const void *y, *dy;
  std::int64_t cols, dx_stride, y_stride, dy_stride;
  float scale;
  bool accumulate;
};

template <class T, int kThreads, int kPacks> __global__ void __launch_bounds__(kThreads) backward(BackwardOperands p) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[kThreads / kWarp];
  const std::int64_t row = blockIdx.x, first = std::int64_t{threadIdx.x} * N;
  T* dx = static_cast<T*>(p.dx) + row * p.dx_stride;
  const T* y = static_cast<const T*>(p.y) + row * p.y_stride;
  const T* dy = static_cast<const T*>(p.dy) + row * p.dy_stride;
  const auto count = [&](std::int64_t at) { return static_cast<int>(p.cols - at < N ? p.cols - at : N); };
  Lanes<N> a[kPacks], b[kPacks];
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t at = first + k * kThreads * N;
    if (at >= p.cols) break;
    a[k] = load<N>(y + at, count(at)), b[k] = load<N>(dy + at, count(at));
    dot += sum(a[k] * b[k]);
  }
  for (std::int64_t at = first + kPacks * kThreads * N; at < p.cols; at += kThreads * N)
    dot += sum(load<N>(y + at, count(at)) * load<N>(dy + at, count(at)));
  dot = block_reduce<kThreads>(dot, Sum{}, memory);
  const auto put = [&](std::int64_t at, const Lanes<N>& yv, const Lanes<N>& dyv) {
    auto v = Lanes<N>(p.scale) * yv * (dyv - Lanes<N>(dot));
    if (p.accumulate) v = v + load<N>(static_cast<const T*>(dx + at), count(at));
    store(dx + at, v, count(at));
  };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t at = first + k * kThreads * N;
    if (at >= p.cols) break;
    put(at, a[k], b[k]);
  }
  for (std::int64_t at = first + kPacks * kThreads * N; at < p.cols; at += kThreads * N)
    put(at, load<N>(y + at, count(at)), load<N>(dy + at, count(at)));
}

}  // namespace

void softmax(Stream& s, Tensor y, View x, const Softmax::Args& a) {
  if (y.size() == 0) return;
  const Problem p{y.data(), x.data(), x.rows(), x.cols(), y.row_stride(), x.row_stride(), a.causal ? x[-2] : 0, a.scale};
  visit_dtype(x.dtype(), [&]<class T>() { run<T>(s, p); });
}

void softmax_backward(Stream& s, Grad dx, View y, View dy, const Softmax::Args& a) {
  if (dx.size() == 0) return;
  const BackwardOperands p{dx.data(), y.data(), dy.data(), y.cols(), dx.row_stride(), y.row_stride(), dy.row_stride(), a.scale, dx.accumulate()};
  visit_dtype(y.dtype(), [&]<class T>() {
    const unsigned rows = blocks_for(y.rows(), 1);
    if (p.cols <= 128 * kLanes<T>) backward<T, 128, 1><<<rows, 128, 0, queue(s)>>>(p);
    else if (p.cols <= 1024 * kLanes<T>) backward<T, 256, 4><<<rows, 256, 0, queue(s)>>>(p);
    else backward<T, 1024, 4><<<rows, 1024, 0, queue(s)>>>(p);
    launched("softmax_backward");
  });
}

}  // namespace hpcdl::cuda
