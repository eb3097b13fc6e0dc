#include "hpcdl/ops/logprobs/logprobs.h"

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/sample/row.cuh"

namespace hpcdl::cuda {
namespace {

/// The sum over the block, in an order that depends on nothing.
__device__ float sum_of_block(float x) {
  __shared__ float sums[kWarp];
  const auto of_warp = [](float v) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
    return v;
  };
  x = of_warp(x);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  return of_warp(sums[threadIdx.x % kWarp]);
}

struct Operands {
  TokenLogprob* to;
  const float* logits;
  std::int64_t stride;
  const std::int32_t *wanted, *found;
  int cols, most;
};

/// One block per row.
__global__ void __launch_bounds__(kThreads) write_rows(const __grid_constant__ Operands o) {
  __shared__ Shared shared;
  __shared__ Key kept[Logprobs::kMost];
  __shared__ int count;
  let_next_begin();
  await_previous();
  const Row row{o.logits + blockIdx.x * o.stride, o.cols, 32 - __clz((o.cols - 1) | 1), 0, 1};
  TokenLogprob* to = o.to + std::int64_t{blockIdx.x} * (1 + o.most);
  const int given = o.wanted[blockIdx.x], id = given >= 0 ? given : o.found[blockIdx.x];
  const auto thread = static_cast<int>(threadIdx.x);
  const Key best = best_of(row);
  if (!has_largest(best) || id < 0 || id >= o.cols) {
    if (thread <= o.most) to[thread] = {id, __int_as_float(0x7fffffff)};
    return;
  }
  const float top = row.logits[place_of_best(best)];
  float mine = 0;
  row.each([&](float v, int) { mine += ::expf(v - top); });
  const float all = ::logf(sum_of_block(mine));
  const auto logprob = [&](int of) { return (row.logits[of] - top) - all; };
  if (thread == 0) to[0] = {id, logprob(id)}, count = 0;
  if (o.most == 0) return;
  const int most = o.most < o.cols ? o.most : o.cols;
  const Key least = lowest_of_first(row, row.key(top, place_of_best(best)), most, shared);
  row.each([&](float v, int of) {
    if (const Key key = row.key(v, of); key >= least) kept[atomicAdd(&count, 1)] = key;
  });
  __syncthreads();
  if (thread >= o.most) return;
  if (thread >= most) {
    to[1 + thread] = {-1, -__builtin_inff()};
    return;
  }
  int place = 0;  // keys differ
  for (int i = 0; i < most; ++i) place += kept[i] > kept[thread] ? 1 : 0;
  const int of = row.id(kept[thread]);
  to[1 + place] = {of, logprob(of)};
}

}  // namespace

void logprobs(Stream& s, Tensor to, View logits, View wanted, View found) {
  if (logits.rows() == 0) return;
  const Operands o{.to = reinterpret_cast<TokenLogprob*>(to.ptr<std::int32_t>()),
                   .logits = logits.ptr<float>(),
                   .stride = logits.row_stride(),
                   .wanted = wanted.ptr<std::int32_t>(),
                   .found = found.ptr<std::int32_t>(),
                   .cols = static_cast<int>(logits.cols()),
                   .most = static_cast<int>(to.shape()[1]) - 1};
  launch_overlapped(queue(s), overlaps(s, logits.rows()), write_rows,
                    {.grid = blocks_for(logits.rows(), 1), .block = kThreads}, "logprobs", o);
}

}  // namespace hpcdl::cuda
