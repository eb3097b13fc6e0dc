#include "hpcdl/ops/attention/far_rows.cuh"

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

/// Called by eight lanes. Not inline, so that ordinary rows do not pay for it.
template <class Problem>
__device__ __noinline__ RowExponent far_exponent(const Problem& p, std::int64_t b, std::int64_t t, std::int64_t h,
                                                 float lse) {
  const std::int64_t q0 = p.q.at(b, t, h), kv = h / p.group();
  return row_exponent<8>(lse, p.first_of(b, p.seen(t)), p.seen(t), p.scale * kLog2e, [&](std::int64_t key) {
    const std::int64_t k0 = p.k.at(b, key, kv);
    float dot = 0;
#pragma unroll 1
    for (int d = 0; d < p.width; ++d) dot = ::fmaf(p.q.get(q0 + d), p.k.get(k0 + d), dot);
    return p.capped(dot);
  });
}

/// Eight lanes per row.
template <class Problem>
__global__ void __launch_bounds__(256)
    attention_statistics(const __grid_constant__ Problem p, const __grid_constant__ RowStatistics to,
                         std::int64_t rows) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 32 + threadIdx.x / 8;
  const std::int64_t row = i < rows ? i : rows - 1, t = row % p.queries, h = row / p.queries % p.heads,
                     b = row / p.queries / p.heads;
  float delta = 0;
  if (to.deltas)
    for (int d = static_cast<int>(threadIdx.x) % 8; d < p.width; d += 8)
      delta = ::fmaf(p.dout.get(p.dout.at(b, t, h) + d), p.out.get(p.out.at(b, t, h) + d), delta);
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) delta += __shfl_xor_sync(~0u, delta, offset);
  const float lse = p.lse[row];
  const auto e = __any_sync(~0u, is_far_row(p, lse)) ? far_exponent(p, b, t, h, lse) : near_exponent(lse);
  if (threadIdx.x % 8 != 0 || i >= rows) return;
  if (to.deltas) to.deltas[i] = delta;
  to.tops[i] = e.top, to.logs[i] = e.log;
  if (to.near_lse) to.near_lse[i] = e.top == 0 ? lse : __builtin_inff();
  if (to.any_far && e.top != 0) *to.any_far = 1;
}

}  // namespace

void find_statistics(Stream& s, const AttendBackward& c, const RowStatistics& to) {
  const std::int64_t rows = c.q[0] * c.args.heads * c.q[1];
  if (to.any_far) check(cudaMemsetAsync(to.any_far, 0, sizeof(int), queue(s)), "attention_backward");
  with_documents(c, problem_of(c),
                 [&](const auto& p) { attention_statistics<<<blocks_for(rows, 32), 256, 0, queue(s)>>>(p, to, rows); });
  launched("attention_backward");
}

}  // namespace hpcdl::cuda
