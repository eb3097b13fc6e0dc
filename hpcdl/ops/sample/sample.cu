#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/sample/sample.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/rng.h"

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

constexpr int kBins = 2048;
using Key = unsigned long long;

__device__ Key largest_of_block(Key key) {
  __shared__ Key keys[kWarp];
  const auto of_warp = [](Key k) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) k = larger(k, __shfl_xor_sync(~0u, k, apart));
    return k;
  };
  key = of_warp(key);
  if (threadIdx.x % kWarp == 0) keys[threadIdx.x / kWarp] = key;
  __syncthreads();
  return of_warp(keys[threadIdx.x % kWarp]);
}

/// The sum over a warp.
__device__ Key sum_of_warp(Key x) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}
/// The sum over this lane and those before it.
__device__ Key sum_up_to(Key x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const Key other = __shfl_up_sync(~0u, x, apart);
    if (lane >= apart) x += other;
  }
  return x;
}

struct Shared {
  Key bins[kBins], warps[kWarp];
  Key target;  // of the next cut
  int bin, id;
};

/// The logits of a row and what their weights depend on. A place is one of a total order: larger logits, and of equal ones
/// the first, have larger keys.
struct Row {
  const float* logits;
  int cols, id_bits;
  double top, temperature;

  __device__ Key key(float v, int id) const {
    const unsigned bits = __float_as_uint(v == 0 ? 0.0f : v), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << id_bits | static_cast<Key>((1 << id_bits) - 1 - id);
  }
  __device__ int id(Key key) const { return (1 << id_bits) - 1 - static_cast<int>(key & ((Key{1} << id_bits) - 1)); }
  /// In [0, 1].
  __device__ double share(float v) const { return ::exp((static_cast<double>(v) - top) / temperature); }
  __device__ static Key weight(double share) { return static_cast<Key>(share * 0x1p44); }

  template <class F> __device__ void each(F&& f) const {
    for (int first = static_cast<int>(threadIdx.x); first < cols; first += kAtOnce * kThreads) {
      float v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        v[i] = first + i * kThreads < cols ? logits[first + i * kThreads] : -__builtin_inff();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i * kThreads < cols) f(v[i], first + i * kThreads);
    }
  }
};

/// The lowest key of the smallest set of places, from the highest one down, whose sizes reach `target`, which is not 0;
/// `low` if all places from there on do not. Every pass narrows the range of keys to one bin of 2048.
template <class Size> __device__ Key cut(const Row& row, Key low, Key high, Key target, Shared& s, Size size) {
  while (true) {
    const int width = 64 - __clzll(static_cast<long long>((high - low) | 1)), shift = width > 11 ? width - 11 : 0;
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) s.bins[b] = 0;
    if (threadIdx.x == 0) s.bin = -1;
    __syncthreads();
    row.each([&](float v, int id) {
      const Key key = row.key(v, id);
      if (key < low || key > high) return;
      if (const Key n = size(v)) atomicAdd(&s.bins[(key - low) >> shift], n);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // a lane adds some bins, the first lane the highest ones
      constexpr int kEach = kBins / kWarp;
      const int last = kBins - 1 - static_cast<int>(threadIdx.x) * kEach;
      Key mine = 0;
      for (int i = 0; i < kEach; ++i) mine += s.bins[last - i];
      Key sum = sum_up_to(mine) - mine;
      if (sum < target && sum + mine >= target) {
        int b = last;
        for (; sum + s.bins[b] < target; --b) sum += s.bins[b];
        s.bin = b, s.target = target - sum;
      }
    }
    __syncthreads();
    const int bin = s.bin;
    if (bin < 0) return low;
    target = s.target;
    low += static_cast<Key>(bin) << shift;
    if (shift == 0) return low;
    const Key last = low + ((Key{1} << shift) - 1);
    high = last < high ? last : high;
    __syncthreads();
  }
}

/// The sum of f(logit, id) over the row.
template <class F> __device__ Key sum(const Row& row, Shared& s, F f) {
  Key mine = 0;
  row.each([&](float v, int id) { mine += f(v, id); });
  mine = sum_of_warp(mine);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) s.warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  return sum_of_warp(s.warps[threadIdx.x % kWarp]);
}

/// The place, in the order of ids, at which the sum of f(logit, id) exceeds `target`, which is less than the whole sum.
template <class F> __device__ int place_of(const Row& row, Key target, Shared& s, F f) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp,
            part = (row.cols + kThreads - 1) / kThreads * kWarp, begin = warp * part,
            end = begin + part < row.cols ? begin + part : row.cols;
  const auto at = [&](int id) { return id < end ? f(row.logits[id], id) : Key{0}; };
  Key mine = 0;
  for (int id = begin + lane; id < end; id += kWarp) mine += at(id);
  mine = sum_of_warp(mine);
  __syncthreads();
  if (lane == 0) s.warps[warp] = mine;
  __syncthreads();
  const Key up_to = __shfl_sync(~0u, sum_up_to(s.warps[lane]), warp), before = up_to - mine;
  if (before <= target && target < up_to) {
    Key sum = before;
    for (int first = begin; first < end; first += kWarp) {
      const Key x = sum_up_to(at(first + lane));
      const unsigned over = __ballot_sync(~0u, sum + x > target);
      if (over) {
        if (lane == 0) s.id = first + __ffs(static_cast<int>(over)) - 1;
        break;
      }
      sum += __shfl_sync(~0u, x, kWarp - 1);
    }
  }
  __syncthreads();
  return s.id;
}

__device__ int drawn(const Row& row, Key best, const SampleRule& rule, Shared& s) {
  const auto weight = [&](float v) { return Row::weight(row.share(v)); };
  const Key top = row.key(static_cast<float>(row.top), static_cast<int>(~0u - static_cast<unsigned>(best)));
  Key least = 0;  // the lowest key of the tokens that are left
  if (rule.top_k > 0 && rule.top_k < row.cols)
    least = cut(row, 0, top, static_cast<Key>(rule.top_k), s, [](float) { return Key{1}; });
  const auto left = [&](float v, int id) {
    if (row.key(v, id) < least) return Key{0};
    const double share = row.share(v);
    return rule.min_p > 0 && share < static_cast<double>(rule.min_p) ? Key{0} : Row::weight(share);
  };
  if (rule.top_p < 1) {
    const Key all = sum(row, s, [&](float v, int id) { return row.key(v, id) < least ? Key{0} : weight(v); });
    const auto enough = static_cast<Key>(ceil(static_cast<double>(rule.top_p) * static_cast<double>(all)));
    least = cut(row, least, top, enough > 0 ? enough : 1, s, weight);
  }
  const Key all = sum(row, s, left);
  const auto bits = Rng{rule.seed, 0x5a}.block(rule.index);
  const Key target = __umul64hi(static_cast<Key>(bits[0]) << 32 | bits[1], all);
  if (rule.top_p < 1) return row.id(cut(row, least, top, target + 1, s, weight));
  return place_of(row, target, s, left);
}

/// One block per row.
__global__ void __launch_bounds__(kThreads)
    sample_rows(std::int32_t* ids, const float* logits, std::int64_t stride, int cols, SampleRule* rules) {
  __shared__ Shared shared;
  let_next_begin();
  await_previous();
  Row row{logits + blockIdx.x * stride, cols, 32 - __clz((cols - 1) | 1), 0, 1};
  Key best = 0;
  for (int first = static_cast<int>(threadIdx.x); first < cols; first += kAtOnce * kThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t at = first + std::int64_t{i} * kThreads;
      v[i] = at < cols ? row.logits[at] : -__builtin_inff();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) best = larger(best, key_of(v[i], static_cast<unsigned>(first + i * kThreads)));
  }
  best = largest_of_block(best);
  const SampleRule rule = rules[blockIdx.x];
  int place = static_cast<int>(~0u - static_cast<unsigned>(best));
  if (best == 0) place = kNoToken;
  else if (best >> 32 == ~0u) place = -1 - place;
  else if (rule.temperature != 0) {
    row.top = row.logits[place], row.temperature = rule.temperature;
    place = drawn(row, best, rule, shared);
  }
  if (threadIdx.x != 0) return;
  ids[blockIdx.x] = place;
  rules[blockIdx.x].index = rule.index + 1;
}

struct Delivery {
  struct Places {
    std::int64_t* slots;
    const std::int32_t* pages;
  };
  std::int32_t* to;
  const std::int32_t* ids;
  std::int32_t *positions, *lengths;
  Places places[2];
  int groups, count, row;
};

/// A thread delivers the token of one sequence.
__global__ void __launch_bounds__(kThreads) deliver_ids(const __grid_constant__ Delivery d) {
  const int r = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (r >= d.count) return;
  d.to[r] = d.ids[r];
  if (d.places[0].slots[r] < 0) return;
  constexpr int kPage = static_cast<int>(kPageTokens);
  const int key = d.lengths[r]++, page = key / kPage;
  d.positions[r] += 1;
  for (int i = 0; i < d.groups; ++i) {
    const auto& [slots, pages] = d.places[i];
    slots[r] = page < d.row ? std::int64_t{pages[r * d.row + page]} * kPage + key % kPage : -1;
  }
}

}  // namespace

void deliver(Stream& s, std::int32_t* to, View ids, const NextTokens& next) {
  Delivery d{.to = to,
             .ids = ids.ptr<std::int32_t>(),
             .positions = next.positions.ptr<std::int32_t>(),
             .lengths = next.lengths.ptr<std::int32_t>(),
             .places = {},
             .groups = 0,
             .count = static_cast<int>(ids.size()),
             .row = static_cast<int>(next.places[0].pages[1])};
  for (const auto& [slots, pages] : next.places)
    if (slots) d.places[d.groups++] = {slots.ptr<std::int64_t>(), pages.ptr<std::int32_t>()};
  const unsigned threads = d.count < kThreads ? static_cast<unsigned>(d.count) : kThreads;
  deliver_ids<<<blocks_for(d.count, kThreads), threads, 0, queue(s)>>>(d);
  launched("sample");
}

void sample(Stream& s, Tensor ids, View logits, Tensor rules) {
  if (ids.size() == 0) return;
  launch_overlapped(queue(s), overlaps(s, logits.rows()), sample_rows,
                    {.grid = blocks_for(logits.rows(), 1), .block = kThreads}, "sample", ids.ptr<std::int32_t>(),
                    logits.ptr<float>(), logits.row_stride(), static_cast<int>(logits.cols()),
                    reinterpret_cast<SampleRule*>(rules.ptr<std::int32_t>()));
}

}  // namespace hpcdl::cuda
