#pragma once
// Causal rows that the threads of one block hold in a few packs each (.cu files). Columns that a row does not see are
// neither read nor computed, only written: half of a square, whose arithmetic would take longer than memory.

#include "hpcdl/cuda/rows.cuh"
#include "hpcdl/ops/softmax/softmax_device.cuh"

namespace hpcdl::cuda {

/// Packs per thread; eight would spill with 64 registers.
inline constexpr int kMostCausalPacks = 4;

/// On average half of the bytes of a row are in flight, so more rows run at a time than for rows that are fully
/// visible: 1280 threads per multiprocessor, with 48 registers each. Terms are computed twice instead of stored.
template <class T, class Team, bool kWhole>
__global__ void __launch_bounds__(Team::kBlockThreads, 1280 / Team::kBlockThreads) forward_causal(SoftmaxProblem p) {
  constexpr int N = kLanes<T>, K = Team::kPacks;
  using Share = RowShare<T, Team, kWhole>;
  __shared__ float memory[2][kWarp];
  const std::int64_t row = Team::row();
  const bool exists = row < p.rows;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const Share share(row, exists ? p.cols : 0);
  const int seen = exists ? static_cast<int>(p.seen(row)) : 0;
  const auto exponent = SoftmaxExponent::of<T>(p.scale);
  const T rest = narrow<T>(p.scale < 0 ? kInf : -kInf);

  Pack<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (share.col(k) >= seen) continue;
    if constexpr (kWhole) in[k] = read_aligned<N>(x + share.col(k));
    else in[k] = share.read(x, k, rest, seen);
  }
  float top = -kInf;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int here = seen - share.col(k);
    if (here <= 0) continue;
    if (kWhole && here < N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i >= here) in[k].set(i, rest);
    }
    exponent.negate(in[k]);
    top = fmaxf(top, largest(in[k]));
  }
  const float shift = finite(Team::reduce(top, Max{}, memory[0]));
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (share.col(k) >= seen) continue;
    Share::hold(in[k]);
    sum += cuda::sum(exponent(widen(in[k]), shift));
  }
  const Lanes<N> inverse(1.0f / Team::reduce(sum, Sum{}, memory[1]));
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!share.some(k)) break;
    Pack<T, N> out{};
    if (share.col(k) < seen) {
      Share::hold(in[k]);
      out = pack<T>(exponent(widen(in[k]), shift) * inverse);
      hide(out, seen - share.col(k));
    }
    share.write(y, k, out);
  }
}

}  // namespace hpcdl::cuda
