#pragma once
// What kernels with one block per row of logits share: its largest logit, and the places from the highest one down
// whose sizes reach a sum.

#include "hpcdl/cuda/element.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 1024, kAtOnce = 8;

/// A key that orders values, and equal values by smaller place first; 0 means no value. Values without an order (NaN,
/// infinity) rank above all others, the first of them highest.
__device__ inline unsigned long long key_of(float v, unsigned place) {
  if (v == -__builtin_inff()) return 0;
  const unsigned bits = __float_as_uint(v == 0 ? 0.0f : v), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  const bool none = !(v < __builtin_inff());
  return static_cast<unsigned long long>(none ? ~0u : ordered) << 32 | (~0u - place);
}
__device__ inline unsigned long long larger(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

constexpr int kBins = 2048;
using Key = unsigned long long;

__device__ inline Key largest_of_block(Key key) {
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
__device__ inline Key sum_of_warp(Key x) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}
/// The sum over this lane and those before it.
__device__ inline Key sum_up_to(Key x) {
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

/// The logits of a row and what their weights depend on. A place is one of a total order: larger logits, and of equal
/// ones the first, have larger keys.
struct Row {
  const float* logits;
  int cols, id_bits;
  double top, temperature;

  __device__ Key key(float v, int id) const {
    const unsigned bits = __float_as_uint(v == 0 ? 0.0f : v), ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << id_bits | id_key(id);
  }
  /// Larger for smaller ids.
  __device__ Key id_key(int id) const { return static_cast<Key>((1 << id_bits) - 1 - id); }
  __device__ int id(Key key) const { return (1 << id_bits) - 1 - static_cast<int>(key & ((Key{1} << id_bits) - 1)); }
  /// At least 0.
  __device__ double depth(float v) const { return (top - static_cast<double>(v)) / temperature; }
  /// In [0, 1].
  __device__ double share(float v) const { return ::exp(-depth(v)); }
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
/// `low` if all places from there on do not. Keys are those of key_of(logit, id), sizes those of size(logit, id). Every
/// pass narrows the range of keys to one bin of 2048.
template <class KeyOf, class Size>
__device__ Key cut(const Row& row, Key low, Key high, Key target, Shared& s, KeyOf key_of, Size size) {
  while (true) {
    const int width = 64 - __clzll(static_cast<long long>((high - low) | 1)), shift = width > 11 ? width - 11 : 0;
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) s.bins[b] = 0;
    if (threadIdx.x == 0) s.bin = -1;
    __syncthreads();
    row.each([&](float v, int id) {
      const Key key = key_of(v, id);
      if (key < low || key > high) return;
      if (const Key n = size(v, id)) atomicAdd(&s.bins[(key - low) >> shift], n);
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

/// The same in the order of logits.
template <class Size> __device__ Key cut(const Row& row, Key low, Key high, Key target, Shared& s, Size size) {
  return cut(
      row, low, high, target, s, [&](float v, int id) { return row.key(v, id); },
      [&](float v, int) { return size(v); });
}

/// A key that `count` places or more reach: of the highest ones of each thread, that of this rank; 0 if there is none.
__device__ inline Key reached_by(const Row& row, int count, Shared& s) {
  const auto thread = static_cast<int>(threadIdx.x);
  Key mine = 0;
  row.each([&](float v, int id) { mine = larger(mine, row.key(v, id)); });
  s.bins[thread] = mine;
  if (thread == 0) s.target = 0;
  __syncthreads();
  int above = 0;
  for (int i = 0; i < kThreads; ++i) above += s.bins[i] > mine ? 1 : 0;
  if (mine != 0 && above == count - 1) s.target = mine;  // keys differ
  __syncthreads();
  const Key key = s.target;
  __syncthreads();
  return key;
}

/// The lowest key of the `count` highest places, of which `top` is the highest. Most places are told apart before any
/// is counted: counts of equal bins wait for each other.
__device__ inline Key lowest_of_first(const Row& row, Key top, int count, Shared& s) {
  const Key low = count <= kThreads ? reached_by(row, count, s) : 0;
  return cut(row, low, top, static_cast<Key>(count), s, [](float) { return Key{1}; });
}

/// The key of the largest logit, by key_of().
__device__ inline Key best_of(const Row& row) {
  Key best = 0;
  for (int first = static_cast<int>(threadIdx.x); first < row.cols; first += kAtOnce * kThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t at = first + std::int64_t{i} * kThreads;
      v[i] = at < row.cols ? row.logits[at] : -__builtin_inff();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) best = larger(best, key_of(v[i], static_cast<unsigned>(first + i * kThreads)));
  }
  return largest_of_block(best);
}
/// Whether the row has a largest logit: some are more than -infinity, none is NaN or +infinity.
__device__ inline bool has_largest(Key best) { return best != 0 && best >> 32 != ~0u; }
/// Its place; if there are NaN or +infinity, that of the first one.
__device__ inline int place_of_best(Key best) { return static_cast<int>(~0u - static_cast<unsigned>(best)); }

}  // namespace
}  // namespace hpcdl::cuda
