#include "hpcdl/ops/top1/top1.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/sweep.cuh"
#include "hpcdl/cuda/workspace.h"

// A row is correct if no value in it is larger than the one at its target, and none before the target is equal: this
// needs no search for the maximum, and every element is compared independently. Counts are integers, so their order
// does not matter.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kPacks = 4, kMostBlocks = 1024;

struct Top1Rows {
  const void* logits;
  const std::int32_t* targets;
  std::int64_t stride, rows, cols;
};

/// Whether this thread, one of kTeam, finds a value that beats the target of a row.
template <class T, int kTeam, bool kWhole> __device__ bool beaten(const Top1Rows& p, std::int64_t row, int thread) {
  constexpr int N = kLanes<T>;
  const T* x = static_cast<const T*>(p.logits) + row * p.stride;
  const std::int64_t target = p.targets[row];
  if (target < 0 || target >= p.cols) return true;
  const float at_target = widen(x[target]);
  bool found = at_target != at_target;
  for (std::int64_t at = thread * N - (kWhole ? 0 : row_lead<T>(row, p.cols)); at < p.cols;
       at += std::int64_t{kTeam} * N * kPacks) {
    Pack<T, N> v[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t col = at + k * kTeam * N, left = p.cols - col;
      if constexpr (kWhole) {
        v[k] = {};
        if (left > 0) v[k] = read_aligned<N>(x + col);
      } else {
        v[k] = read<N>(x + col, col < 0 ? static_cast<int>(-col) : 0, static_cast<int>(left < N ? left : N), T{});
      }
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t col = at + k * kTeam * N;
      if (col >= p.cols) break;
      const auto values = widen(v[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const bool here = kWhole || (col + i >= 0 && col + i < p.cols);
        found |= here && (values.v[i] > at_target || (values.v[i] == at_target && col + i < target));
      }
    }
  }
  return found;
}

/// kTeam threads, a warp or the block, process a row at a time; a block stores its count in `counts`, or in `correct`
/// if it is the only one.
template <class T, int kTeam, bool kWhole>
__global__ void __launch_bounds__(kThreads) count_right(float* correct, int* counts, Top1Rows p) {
  constexpr int kTeams = kThreads / kTeam;
  __shared__ int right[kTeams];
  const int team = static_cast<int>(threadIdx.x) / kTeam, thread = static_cast<int>(threadIdx.x) % kTeam;
  int mine = 0;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kTeams + team; row < p.rows;
       row += std::int64_t{gridDim.x} * kTeams) {
    const bool found = beaten<T, kTeam, kWhole>(p, row, thread);
    if constexpr (kTeam == kWarp) mine += __any_sync(~0u, found) ? 0 : 1;
    else mine += __syncthreads_or(found) ? 0 : 1;
  }
  if (thread == 0) right[team] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (int i = 0; i < kTeams; ++i) sum += right[i];
  if (gridDim.x == 1) *correct = static_cast<float>(sum);
  else counts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kMostBlocks) add_counts(float* correct, const int* counts, int n) {
  __shared__ int sums[kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const int of_warp = __reduce_add_sync(~0u, thread < n ? counts[thread] : 0);
  if (thread % kWarp == 0) sums[thread / kWarp] = of_warp;
  __syncthreads();
  if (thread >= kWarp) return;
  const int all = __reduce_add_sync(~0u, sums[thread]);
  if (thread == 0) *correct = static_cast<float>(all);
}

}  // namespace

void top1(Stream& s, Tensor correct, View logits, View targets) {
  const Top1Rows p{logits.data(), targets.ptr<std::int32_t>(), logits.row_stride(), logits.rows(), logits.cols()};
  auto* counts = static_cast<int*>(workspace(s));
  visit_dtype(logits.dtype(), [&]<class T>() {
    const auto launch = [&]<int kTeam>() {
      const auto kernel =
          whole_packs<T>(p.cols, {{p.logits, p.stride}}) ? count_right<T, kTeam, true> : count_right<T, kTeam, false>;
      const unsigned wanted = blocks_for(p.rows, kThreads / kTeam), blocks = wanted < 1             ? 1
                                                                             : wanted < kMostBlocks ? wanted
                                                                                                    : kMostBlocks;
      kernel<<<blocks, kThreads, 0, queue(s)>>>(correct.ptr<float>(), counts, p);
      launched("top1");
      if (blocks > 1)
        add_counts<<<1, kMostBlocks, 0, queue(s)>>>(correct.ptr<float>(), counts, static_cast<int>(blocks));
    };
    if (p.cols <= 4096) launch.template operator()<kWarp>();
    else launch.template operator()<kThreads>();
  });
  launched("top1.sum");
}

}  // namespace hpcdl::cuda
