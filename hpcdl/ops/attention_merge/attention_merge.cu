#include "hpcdl/ops/attention_merge/attention_merge.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kRowThreads = 32;

struct Merge {
  float *to, *to_lse;
  const float *out, *lse;
  const void* part;
  const float* part_lse;
  std::int64_t heads, queries, merged, width, rows;
};

template <class T> __global__ void __launch_bounds__(kThreads) merge_rows(const __grid_constant__ Merge m) {
  const std::int64_t row = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kRowThreads;
  const auto lane = static_cast<std::int64_t>(threadIdx.x % kRowThreads);
  if (row >= m.rows) return;
  const std::int64_t h = row % m.heads, t = row / m.heads % m.queries, b = row / m.heads / m.queries,
                     at = (b * m.heads + h) * m.queries + t;
  const float a = m.lse[at], other = t < m.merged ? m.part_lse[(b * m.heads + h) * m.merged + t] : -__builtin_inff();
  __syncwarp();  // to_lse may be lse
  float of_out = 1, of_part = 0, lse = a;
  if (other != -__builtin_inff()) {
    const float top = fmaxf(a, other), x = expf(a - top), y = expf(other - top), sum = x + y;
    of_out = x / sum, of_part = y / sum, lse = top + logf(sum);
  }
  if (lane == 0) m.to_lse[at] = lse;
  float* const to = m.to + row * m.width;
  const float* const out = m.out + row * m.width;
  const T* const part = static_cast<const T*>(m.part) + ((b * m.merged + t) * m.heads + h) * m.width;
  for (std::int64_t i = lane; i < m.width; i += kRowThreads)
    to[i] = of_part == 0 ? out[i] * of_out : ::fmaf(out[i], of_out, widen(part[i]) * of_part);
}

}  // namespace

void attention_merge(Stream& s, Tensor to, Tensor to_lse, View out, View lse, View part, View part_lse) {
  if (out.size() == 0) return;
  const std::int64_t heads = lse[1], rows = out[0] * out[1] * heads;
  const Merge m{.to = to.ptr<float>(),
                .to_lse = to_lse.ptr<float>(),
                .out = out.ptr<float>(),
                .lse = lse.ptr<float>(),
                .part = part.data(),
                .part_lse = part_lse.ptr<float>(),
                .heads = heads,
                .queries = out[1],
                .merged = part[1],
                .width = out[2] / heads,
                .rows = rows};
  visit_dtype(part.dtype(), [&]<class T>() {
    merge_rows<T><<<blocks_for(rows * kRowThreads, kThreads), kThreads, 0, queue(s)>>>(m);
  });
  launched("attention_merge");
}

}  // namespace hpcdl::cuda
