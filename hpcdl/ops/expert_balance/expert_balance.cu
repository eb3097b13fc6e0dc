#include "hpcdl/ops/expert_balance/expert_balance.h"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kChunk = static_cast<int>(ExpertLoad::kChunk);

/// The largest of a row of scores, and the sum of exp(score - largest). Called by whole warps.
struct RowSoftmax {
  float top = -__builtin_inff(), all = 0;

  __device__ RowSoftmax(const float* row, int n) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int e = lane; e < n; e += kWarp) top = fmaxf(top, row[e]);
    top = warp_reduce(top, Max{});
    for (int e = lane; e < n; e += kWarp) all += expf(row[e] - top);
    all = warp_reduce(all, Sum{});
  }
  __device__ float operator()(float score) const { return expf(score - top) / all; }
};

struct Loads {
  const float* scores;
  const std::int32_t* experts;
  float* parts;
  std::int64_t rows, stride;
  int count, chosen, chunks;
};

/// A block sums a chunk of rows; a thread has every kThreads-th expert.
__global__ void __launch_bounds__(kThreads) sum_chunk(const __grid_constant__ Loads p) {
  __shared__ float tops[kChunk], sums[kChunk];
  const std::int64_t first = std::int64_t{blockIdx.x} * kChunk;
  const int rows = static_cast<int>(p.rows - first < kChunk ? p.rows - first : kChunk);
  for (int r = static_cast<int>(threadIdx.x) / kWarp; r < rows; r += kWarps) {
    const RowSoftmax softmax(p.scores + (first + r) * p.stride, p.count);
    if (threadIdx.x % kWarp == 0) tops[r] = softmax.top, sums[r] = softmax.all;
  }
  __syncthreads();
  const std::int32_t* const experts = p.experts + first * p.chosen;
  for (int e = static_cast<int>(threadIdx.x); e < p.count; e += kThreads) {
    float sum = 0, chosen = 0;
    for (int r = 0; r < rows; ++r) sum += expf(p.scores[(first + r) * p.stride + e] - tops[r]) / sums[r];
    for (int i = 0; i < rows * p.chosen; ++i) chosen += experts[i] == e ? 1.0f : 0.0f;
    float* const to = p.parts + std::int64_t{blockIdx.x} * p.count + e;
    to[0] = sum, to[std::int64_t{p.chunks} * p.count] = chosen;
  }
}

/// blockIdx.y: probabilities, counts.
__global__ void __launch_bounds__(kThreads)
    sum_chunks(const float* parts, int chunks, int count, float* probabilities, float* counts,
               const float* probabilities_before, const float* counts_before) {
  const int e = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (e >= count) return;
  const bool second = blockIdx.y == 1;
  const float* const before = second ? counts_before : probabilities_before;
  float sum = 0;
  for (int c = 0; c < chunks; ++c) sum += parts[(std::int64_t{second ? chunks : 0} + c) * count + e];
  (second ? counts : probabilities)[e] = before ? before[e] + sum : sum;
}

struct LoadGradient {
  float* dscores;
  const float *scores, *dprobabilities;
  std::int64_t rows, stride, dstride;
  int count;
  bool accumulate;
};

/// A warp per row.
__global__ void __launch_bounds__(kThreads) load_backward(const __grid_constant__ LoadGradient p) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (r >= p.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const row = p.scores + r * p.stride;
  const RowSoftmax softmax(row, p.count);
  float dot = 0;
  for (int e = lane; e < p.count; e += kWarp) dot += softmax(row[e]) * p.dprobabilities[e];
  dot = warp_reduce(dot, Sum{});
  for (int e = lane; e < p.count; e += kWarp) {
    float* const to = p.dscores + r * p.dstride + e;
    const float d = softmax(row[e]) * (p.dprobabilities[e] - dot);
    *to = p.accumulate ? *to + d : d;
  }
}

/// The number of targets that are not negative; at most 2^24, so that a float holds it. Called by all threads of a block.
__device__ float valid(const std::int32_t* targets, std::int64_t n, float* memory) {
  float found = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) found += targets[i] >= 0 ? 1.0f : 0.0f;
  return block_reduce<kThreads>(found, Sum{}, memory);
}

__device__ float of_all_ranks(const float* counts, int expert, int experts, int ranks) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += counts[r * experts + expert];
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    balance(float* loss, const float* probabilities, const float* counts, const std::int32_t* targets, std::int64_t n,
            int experts, int ranks, double factor) {
  __shared__ float memory[2 * kWarps];
  const float found = valid(targets, n, memory);
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    sum += probabilities[e] * of_all_ranks(counts, e, experts, ranks);
  sum = block_reduce<kThreads>(sum, Sum{}, memory + kWarps);
  if (threadIdx.x == 0) *loss = static_cast<float>(factor * static_cast<double>(found) * static_cast<double>(sum));
}

__global__ void __launch_bounds__(kThreads)
    balance_backward(float* to, bool accumulate, const float* counts, const std::int32_t* targets, std::int64_t n,
                     int experts, int ranks, const float* dloss, double factor) {
  __shared__ float memory[kWarps];
  const double all = factor * static_cast<double>(valid(targets, n, memory)) * static_cast<double>(*dloss);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    to[e] = (accumulate ? to[e] : 0.0f) +
            static_cast<float>(all * static_cast<double>(of_all_ranks(counts, e, experts, ranks)));
}

}  // namespace

void expert_load(Stream& s, Tensor probabilities, Tensor counts, View scores, View experts, View probabilities_before,
                 View counts_before, Tensor parts) {
  const Loads p{.scores = scores.ptr<float>(),
                .experts = experts.ptr<std::int32_t>(),
                .parts = parts.ptr<float>(),
                .rows = scores.rows(),
                .stride = scores.row_stride(),
                .count = static_cast<int>(scores.cols()),
                .chosen = static_cast<int>(experts.cols()),
                .chunks = static_cast<int>(parts.shape()[1])};
  if (p.chunks > 0) sum_chunk<<<static_cast<unsigned>(p.chunks), kThreads, 0, queue(s)>>>(p);
  launched("expert_load");
  sum_chunks<<<dim3(blocks_for(p.count, kThreads), 2), kThreads, 0, queue(s)>>>(
      p.parts, p.chunks, p.count, probabilities.ptr<float>(), counts.ptr<float>(), probabilities_before.ptr<float>(),
      counts_before.ptr<float>());
  launched("expert_load");
}

void expert_load_backward(Stream& s, Grad dscores, View scores, View dprobabilities) {
  const LoadGradient p{.dscores = dscores.ptr<float>(),
                       .scores = scores.ptr<float>(),
                       .dprobabilities = dprobabilities.ptr<float>(),
                       .rows = scores.rows(),
                       .stride = scores.row_stride(),
                       .dstride = dscores.row_stride(),
                       .count = static_cast<int>(scores.cols()),
                       .accumulate = dscores.accumulate()};
  if (p.rows == 0) return;
  load_backward<<<blocks_for(p.rows, kWarps), kThreads, 0, queue(s)>>>(p);
  launched("expert_load_backward");
}

void expert_balance(Stream& s, Tensor loss, View probabilities, View counts, View targets, double factor) {
  balance<<<1, kThreads, 0, queue(s)>>>(
      loss.ptr<float>(), probabilities.ptr<float>(), counts.ptr<float>(), targets.ptr<std::int32_t>(), targets.size(),
      static_cast<int>(probabilities.size()), static_cast<int>(counts.size() / probabilities.size()), factor);
  launched("expert_balance");
}

void expert_balance_backward(Stream& s, Grad dprobabilities, View counts, View targets, View dloss, double factor) {
  balance_backward<<<1, kThreads, 0, queue(s)>>>(
      dprobabilities.ptr<float>(), dprobabilities.accumulate(), counts.ptr<float>(), targets.ptr<std::int32_t>(),
      targets.size(), static_cast<int>(dprobabilities.size()), static_cast<int>(counts.size() / dprobabilities.size()),
      dloss.ptr<float>(), factor);
  launched("expert_balance_backward");
}

}  // namespace hpcdl::cuda
