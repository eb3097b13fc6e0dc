#pragma once
// One pass of a block over a row too long for registers: each thread has several accesses under way at a time, and
// those of the next turn are issued before the current ones are used.

#include "hpcdl/cuda/whole_packs.cuh"

namespace hpcdl::cuda {

/// f(column, packs): kThreads threads, K packs each per turn, pack k of a thread `k * kThreads * N` columns after the
/// first. Column is below 0 in the first pack if the row begins inside it, after `lead` elements; elements outside of
/// [0, cols) are `rest`. Turns begin at turn `first` and are `every` apart, so that blocks can share a row. kWhole: see
/// whole_packs(); then there is no lead.
template <int kThreads, int K, bool kWhole, class T, class F>
__device__ void sweep(const T* row, std::int64_t cols, T rest, int lead, F&& f, std::int64_t first = 0,
                      std::int64_t every = 1) {
  constexpr int N = kLanes<T>;
  constexpr std::int64_t kTurn = std::int64_t{kThreads} * N * K;
  const auto fetch = [&](Pack<T, N>(&v)[K], std::int64_t at) {
    const int left = static_cast<int>(cols - at < kTurn ? cols - at : kTurn), begin = !kWhole && at < 0 ? lead : 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if constexpr (kWhole) {
#pragma unroll
        for (int i = 0; i < N; ++i) v[k].set(i, rest);
        if (k * kThreads * N < left) v[k] = read_aligned<N>(row + at + k * kThreads * N);
      } else {
        v[k] = read<N>(row + at + k * kThreads * N, k == 0 ? begin : 0, left - k * kThreads * N, rest);
      }
    }
  };
  std::int64_t at = first * kTurn + static_cast<int>(threadIdx.x) * N - (kWhole ? 0 : lead);
  if (at >= cols) return;
  Pack<T, N> v[K], next[K];
  fetch(v, at);
  while (true) {
    const std::int64_t behind = at + every * kTurn;
    if (behind < cols) fetch(next, behind);
    f(at, v);
    if (behind >= cols) return;
    at = behind;
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = next[k];
  }
}

/// The lead of row `row` of a contiguous matrix, see rows.h.
template <class T> __device__ int row_lead(std::int64_t row, std::int64_t cols) {
  return static_cast<int>(row * cols % kLanes<T>);
}

/// Number of turns for a row of `cols` elements of T; a row that begins inside a pack may need one more.
template <class T> std::int64_t sweep_turns(std::int64_t cols, int threads, int packs) {
  return (cols + kLanes<T> - 1) / kLanes<T> / (static_cast<std::int64_t>(threads) * packs) + 1;
}

}  // namespace hpcdl::cuda
