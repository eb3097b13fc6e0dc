#include "hpcdl/ops/document_attention/document_attention.h"

#include <climits>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 1024, kEach = 4, kAtOnce = kThreads * kEach, kWarps = kThreads / kWarp;

/// The largest value of this and all earlier threads, or of all earlier ones.
struct Running {
  int with_own, before;
};
__device__ Running running_max(int x, int (&of_warp)[kWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto over_warp = [lane](int v) {
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(~0u, v, offset);
      if (lane >= offset) v = ::max(v, other);
    }
    return v;
  };
  const int mine = over_warp(x);
  __syncthreads();  // the warps have read the last ones
  if (lane == kWarp - 1) of_warp[warp] = mine;
  __syncthreads();
  const int upto = over_warp(of_warp[lane]), earlier = __shfl_sync(~0u, upto, ::max(warp - 1, 0)),
            left = __shfl_up_sync(~0u, mine, 1);
  const int before = warp > 0 ? earlier : INT_MIN;
  return {::max(mine, before), ::max(lane > 0 ? left : INT_MIN, before)};
}

/// A block finds the bounds of the documents of a row: from the front, where the last one began; from the end, where the
/// next one begins.
__global__ void __launch_bounds__(kThreads) document_bounds(const std::int32_t* positions, std::int64_t distance,
                                                            int tokens, std::int32_t* begins, std::int32_t* ends) {
  __shared__ int of_warp[kWarps], last;
  const std::int64_t row = blockIdx.x;
  positions += row * distance, begins += row * tokens, ends += row * tokens;
  const auto is_first = [&](int t) { return t == 0 || positions[t] == 0; };
  // f(i): what token i of this direction contributes; put(i, the largest of those up to i)
  const auto scan = [&](auto&& f, auto&& put) {
    if (threadIdx.x == 0) last = INT_MIN;
    for (int from = 0; from < tokens; from += kAtOnce) {
      const int i0 = from + static_cast<int>(threadIdx.x) * kEach;
      int x[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        x[e] = ::max(i0 + e < tokens ? f(i0 + e) : INT_MIN, e > 0 ? x[e > 0 ? e - 1 : 0] : INT_MIN);
      const auto all = running_max(x[kEach - 1], of_warp);
      const int before = ::max(all.before, last);
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (i0 + e < tokens) put(i0 + e, ::max(x[e], before));
      __syncthreads();
      if (threadIdx.x == kThreads - 1) last = ::max(all.with_own, last);
    }
    __syncthreads();
  };
  scan([&](int t) { return is_first(t) ? t : INT_MIN; }, [&](int t, int begin) { begins[t] = begin; });
  // Token tokens - 1 - i: the negated end of its document, which is the next token that is a first one.
  scan([&](int i) { return i == 0                 ? -tokens
                           : is_first(tokens - i) ? i - tokens
                                                  : INT_MIN; },
       [&](int i, int end) { ends[tokens - 1 - i] = -end; });
}

DocumentBounds find_bounds(Stream& s, const View& positions, const Tensor& scratch) {
  const std::int64_t rows = positions[0], tokens = positions[1];
  if (tokens == 1) return {};
  auto* const to = scratch.ptr<std::int32_t>();
  const auto bounds = [&](std::int64_t i) { return View(to + i * rows * tokens, positions.spec(), s.device()); };
  document_bounds<<<blocks_for(rows, 1), kThreads, 0, queue(s)>>>(positions.ptr<std::int32_t>(), positions.row_stride(),
                                                                  static_cast<int>(tokens), to, to + rows * tokens);
  launched("document_attention");
  return {bounds(0), bounds(1)};
}

}  // namespace

void document_attention(Stream& s, Tensor out, Tensor lse, View q, View k, View v, View positions, Tensor bounds,
                        const DocumentAttention::Args& a) {
  if (q.size() == 0) return;
  attend_documents(s, Attend{out, lse, q, k, v, {}, a.of_document(), find_bounds(s, positions, bounds)});
}

void document_attention_backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View positions, View out,
                                 View lse, View dout, Tensor bounds, Tensor scratch, const DocumentAttention::Args& a) {
  if (q.size() == 0) return;
  const Attend of{out, lse, q, k, v, scratch, a.of_document(), find_bounds(s, positions, bounds)};
  attend_documents(s, AttendBackward{of, dq, dk, dv, dout});
}

}  // namespace hpcdl::cuda
