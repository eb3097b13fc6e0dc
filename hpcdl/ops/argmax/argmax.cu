#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/ops/kv_write/pages.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/overlap.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 1024, kAtOnce = 8;

/// A key that orders values, and equal values by smaller place first; 0 means no value. Values without an order (NaN,
/// infinity) rank above all others, the first of them highest.
__device__ unsigned long long key_of(float v, unsigned place) {
  if (v == -__builtin_inff()) return 0;
  const unsigned bits = __float_as_uint(v == 0 ? 0.0f : v), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  const bool none = !(v < __builtin_inff());
  return static_cast<unsigned long long>(none ? ~0u : ordered) << 32 | (~0u - place);
}
__device__ unsigned long long larger(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

/// One block per row.
template <class T>
__global__ void __launch_bounds__(kThreads) find(std::int32_t* ids, const T* logits, std::int64_t stride, int cols) {
  __shared__ unsigned long long keys[kWarp];
  let_next_begin();
  await_previous();
  const T* const row = logits + blockIdx.x * stride;
  unsigned long long best = 0;
  for (int first = static_cast<int>(threadIdx.x); first < cols; first += kAtOnce * kThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t at = first + std::int64_t{i} * kThreads;
      v[i] = at < cols ? widen(row[at]) : -__builtin_inff();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) best = larger(best, key_of(v[i], static_cast<unsigned>(first + i * kThreads)));
  }
  const auto of_warp = [](unsigned long long key) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) key = larger(key, __shfl_xor_sync(~0u, key, apart));
    return key;
  };
  best = of_warp(best);
  if (threadIdx.x % kWarp == 0) keys[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = of_warp(keys[threadIdx.x]);
  if (threadIdx.x != 0) return;
  const int place = static_cast<int>(~0u - static_cast<unsigned>(best));
  ids[blockIdx.x] = best == 0 ? -1 : best >> 32 == ~0u ? -1 - place : place;
}

struct Delivery {
  std::int32_t* to;
  const std::int32_t* ids;
  std::int32_t *positions, *lengths;
  std::int64_t* slots;
  const std::int32_t* pages;
  int count, row;
};

/// A thread delivers the token of one sequence.
__global__ void __launch_bounds__(kThreads) deliver_ids(const __grid_constant__ Delivery d) {
  const int r = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (r >= d.count) return;
  d.to[r] = d.ids[r];
  if (d.slots[r] < 0) return;
  constexpr int kPage = static_cast<int>(kPageTokens);
  const int position = ++d.positions[r], page = position / kPage;
  d.lengths[r] += 1;
  d.slots[r] = page < d.row ? std::int64_t{d.pages[r * d.row + page]} * kPage + position % kPage : -1;
}

}  // namespace

void deliver(Stream& s, std::int32_t* to, View ids, const NextTokens& next) {
  const Delivery d{.to = to,
                   .ids = ids.ptr<std::int32_t>(),
                   .positions = next.positions.ptr<std::int32_t>(),
                   .lengths = next.lengths.ptr<std::int32_t>(),
                   .slots = next.slots.ptr<std::int64_t>(),
                   .pages = next.pages.ptr<std::int32_t>(),
                   .count = static_cast<int>(ids.size()),
                   .row = static_cast<int>(next.pages[1])};
  const unsigned threads = d.count < kThreads ? static_cast<unsigned>(d.count) : kThreads;
  deliver_ids<<<blocks_for(d.count, kThreads), threads, 0, queue(s)>>>(d);
  launched("argmax");
}

void argmax(Stream& s, Tensor ids, View logits) {
  if (ids.size() == 0) return;
  visit_dtype(logits.dtype(), [&]<class T>() {
    launch_overlapped(queue(s), overlaps(s, logits.rows()), find<T>,
                      {.grid = blocks_for(logits.rows(), 1), .block = kThreads}, "argmax", ids.ptr<std::int32_t>(),
                      logits.ptr<T>(), logits.row_stride(), static_cast<int>(logits.cols()));
  });
}

}  // namespace hpcdl::cuda
