#pragma once
// Shared code of the GPU kernels of batch_norm (.cu only): the channels and rows of a thread, and sums over the threads
// of a column.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/whole_packs.cuh"
#include "hpcdl/ops/batch_norm/passes.h"

namespace hpcdl::cuda {
namespace {

constexpr int kBlockThreads = 256, kBlocks = 3,
              kUnrolled = 4;  // blocks per multiprocessor; rows of a thread in flight
constexpr int kPack = static_cast<int>(kBatchPack);

/// Divides rows into shares as equal as possible, the longer ones first. Computed on the host: a 64-bit division costs
/// a thread as much as several rows.
struct Shares {
  std::int64_t each, longer;
  Shares(std::int64_t rows, std::int64_t parts)
      : each(parts > 0 ? rows / parts : 0), longer(parts > 0 ? rows % parts : 0) {}
  __device__ std::int64_t begin(std::int64_t part) const { return part * each + (part < longer ? part : longer); }
  __device__ std::int64_t count(std::int64_t part) const { return each + (part < longer ? 1 : 0); }
};

/// The pack of channels and the rows of this thread. kWhole: packs are inside the row and aligned to their size.
template <class T, bool kWhole> struct Place {
  static constexpr int N = kPack;
  std::int64_t col, begin, end;
  int n;  // channels of the pack that exist
  __device__ Place(const Shares& shares, std::int64_t cols, std::int64_t part)
      : col((std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N),
        begin(shares.begin(part)),
        end(begin + shares.count(part)) {
    const std::int64_t left = cols - col;
    n = left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
  }
  __device__ Pack<T, N> load(const T* base, std::int64_t stride, std::int64_t row) const {
    if constexpr (kWhole) return read_aligned<N>(base + row * stride + col);
    else return read<N>(base + row * stride + col, 0, n, T{});
  }
  __device__ void store(T* base, std::int64_t stride, std::int64_t row, const Lanes<N>& v, bool add = false) const {
    T* to = base + row * stride + col;
    const auto sum = add ? v + widen(load(base, stride, row)) : v;
    if constexpr (kWhole) write_aligned(to, pack<T>(sum));
    else write(to, pack<T>(sum), 0, n);
  }
  /// f(row, k) for the rows of one iteration, after bring(row, k) has loaded f's operands for all of them.
  template <int kRows = kUnrolled, class Bring, class F> __device__ void rows(Bring&& bring, F&& f) const {
    if (n == 0) return;
    const int step = static_cast<int>(blockDim.y);
    for (std::int64_t r = begin + threadIdx.y; r < end; r += step * kRows) {
#pragma unroll
      for (int k = 0; k < kRows; ++k)
        if (r + k * step < end) bring(r + k * step, k);
#pragma unroll
      for (int k = 0; k < kRows; ++k)
        if (r + k * step < end) f(r + k * step, k);
    }
  }
};

/// Replaces a and b by their sums over the threads of a column (threadIdx.y), in a fixed order; valid where threadIdx.y
/// == 0.
template <int N> __device__ void sum_columns(Lanes<N>& a, Lanes<N>& b) {
  __shared__ float memory[2][N][kBlockThreads];
  const int at = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
  for (int i = 0; i < N; ++i) memory[0][i][at] = a.v[i], memory[1][i][at] = b.v[i];
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y >= half) continue;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int which = 0; which < 2; ++which) memory[which][i][at] += memory[which][i][at + half * blockDim.x];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) a.v[i] = memory[0][i][at], b.v[i] = memory[1][i][at];
}

/// Per channel: the normalisation of a row. y = fma(x - mean, scale, bias).
template <int N> struct ChannelLanes {
  Lanes<N> mean, root, scale, bias;  // root: sqrt(var + eps)
  __device__ ChannelLanes(const float* means, const float* vars, const Parameter& weight, const Parameter& b, float eps,
                          std::int64_t col, int n)
      : mean(load<N>(means + col, n)), root(sqrt(load<N>(vars + col, n) + Lanes<N>(eps))), scale(1.0f), bias(0.0f) {
    if (weight.data) scale = weight.template load<N>(col, 0, n);
    if (b.data) bias = b.template load<N>(col, 0, n);
    scale = scale / root;
  }
  __device__ Lanes<N> normalised(const Lanes<N>& centred) const { return fma(centred, scale, bias); }
};

/// Launches kernel<T, kWhole> over all rows in at most `most` shares.
template <class T> struct Grid {
  dim3 blocks, threads;
  Shares shares{0, 0};
  Grid(const View& x, std::int64_t most) {
    const auto g = batch_grid(x.spec());
    const auto rows_beside = static_cast<unsigned>(kBlockThreads / g.threads);
    const std::int64_t useful = (x.rows() + rows_beside * kUnrolled - 1) / (rows_beside * kUnrolled);
    threads = dim3(static_cast<unsigned>(g.threads), rows_beside);
    blocks = dim3(blocks_for(g.columns, 1), static_cast<unsigned>(useful < most ? useful : most));
    shares = Shares(x.rows(), blocks.y);
  }
};

/// Shares of the rows in passes without sums: all blocks run at once, because each begins by computing its channels'
/// factors.
inline std::int64_t elementwise_parts(const Stream& s, const View& x) {
  const std::int64_t columns = batch_grid(x.spec()).columns, all = std::int64_t{kBlocks} * multiprocessors(s);
  return all / columns > 0 ? all / columns : 1;
}

}  // namespace
}  // namespace hpcdl::cuda
