#include "hpcdl/ops/moe_route/moe_route.h"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kEach = static_cast<int>(MoeRoute::kMostExperts) / kWarp, kWarps = 4;

struct Route {
  float* weights;
  std::int32_t* experts;
  const float* scores;
  std::int64_t rows, stride;
  int count, chosen;
  bool sum_to_one;
};

/// A warp per row; lane l holds scores l, l + 32, ...
__global__ void __launch_bounds__(kWarps* kWarp) route(const __grid_constant__ Route r) {
  let_next_begin();
  await_previous();
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= r.rows) return;
  float s[kEach], top = -__builtin_inff(), all = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + kWarp * i;
    s[i] = e < r.count ? r.scores[row * r.stride + e] : -__builtin_inff();
    top = fmaxf(top, s[i]);
  }
  top = warp_reduce(top, Max{});
#pragma unroll
  for (int i = 0; i < kEach; ++i) all += lane + kWarp * i < r.count ? expf(s[i] - top) : 0.0f;
  all = warp_reduce(all, Sum{});
  unsigned taken = 0;  // of this lane's scores
  float sum = 0;
  for (int c = 0; c < r.chosen; ++c) {
    float best = -__builtin_inff();
    int at = 1 << 30;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = lane + kWarp * i;
      if (e < r.count && !(taken >> i & 1) && (at == 1 << 30 || s[i] > best)) best = s[i], at = e;
    }
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(~0u, best, apart);
      const int place = __shfl_xor_sync(~0u, at, apart);
      if (place != 1 << 30 && (at == 1 << 30 || other > best || (other == best && place < at)))
        best = other, at = place;
    }
    if (at % kWarp == lane) taken |= 1u << at / kWarp;
    const float weight = expf(best - top) / all;
    sum += weight;
    if (lane == 0) r.experts[row * r.chosen + c] = at, r.weights[row * r.chosen + c] = weight;
  }
  if (r.sum_to_one && lane == 0)
    for (int c = 0; c < r.chosen; ++c) r.weights[row * r.chosen + c] /= sum;
}

struct RouteGradient {
  float* dscores;
  const float *scores, *weights, *dweights;
  const std::int32_t* experts;
  std::int64_t rows, stride, dstride;
  int count, chosen;
  bool sum_to_one, accumulate;
};

/// A warp per row, as route(); cpu::moe_route_backward() has the formula.
__global__ void __launch_bounds__(kWarps* kWarp) route_backward(const __grid_constant__ RouteGradient r) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= r.rows) return;
  const float *const weight = r.weights + row * r.chosen, *const dweight = r.dweights + row * r.chosen;
  float dot = 0;
  for (int i = 0; i < r.chosen; ++i) dot += weight[i] * dweight[i];
  float p[kEach] = {};
  if (!r.sum_to_one) {
    float top = -__builtin_inff(), all = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = lane + kWarp * i;
      p[i] = e < r.count ? r.scores[row * r.stride + e] : -__builtin_inff();
      top = fmaxf(top, p[i]);
    }
    top = warp_reduce(top, Max{});
#pragma unroll
    for (int i = 0; i < kEach; ++i) all += p[i] = lane + kWarp * i < r.count ? expf(p[i] - top) : 0.0f;
    all = warp_reduce(all, Sum{});
#pragma unroll
    for (int i = 0; i < kEach; ++i) p[i] = p[i] / all * dot;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + kWarp * i;
    if (e >= r.count) break;
    float d = -p[i];
    for (int c = 0; c < r.chosen; ++c)
      if (r.experts[row * r.chosen + c] == e) d += weight[c] * (dweight[c] - (r.sum_to_one ? dot : 0));
    float* const to = r.dscores + row * r.dstride + e;
    *to = r.accumulate ? *to + d : d;
  }
}

}  // namespace

void moe_route_backward(Stream& s, Grad dscores, View scores, View weights, View experts, View dweights,
                        const MoeRoute::Args& a) {
  if (scores.rows() == 0) return;
  const RouteGradient r{.dscores = dscores.ptr<float>(),
                        .scores = scores.ptr<float>(),
                        .weights = weights.ptr<float>(),
                        .dweights = dweights.ptr<float>(),
                        .experts = experts.ptr<std::int32_t>(),
                        .rows = scores.rows(),
                        .stride = scores.row_stride(),
                        .dstride = dscores.row_stride(),
                        .count = static_cast<int>(scores.cols()),
                        .chosen = a.count,
                        .sum_to_one = a.sum_to_one,
                        .accumulate = dscores.accumulate()};
  route_backward<<<blocks_for(r.rows, kWarps), kWarps * kWarp, 0, queue(s)>>>(r);
  launched("moe_route_backward");
}

void moe_route(Stream& s, Tensor weights, Tensor experts, View scores, const MoeRoute::Args& a) {
  const Route r{weights.ptr<float>(),
                experts.ptr<std::int32_t>(),
                scores.ptr<float>(),
                scores.rows(),
                scores.row_stride(),
                static_cast<int>(scores.cols()),
                a.count,
                a.sum_to_one};
  if (r.rows == 0) return;
  launch_overlapped(queue(s), overlaps(s, r.rows), route, {.grid = blocks_for(r.rows, kWarps), .block = kWarps * kWarp},
                    "moe_route", r);
}

}  // namespace hpcdl::cuda
