#pragma once
// How the GPU kernels of pooling cover an image (.cu only): a block processes one row of pixels, its threads the
// 16-byte packs of that row.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/whole_packs.cuh"
#include "hpcdl/ops/windows.h"

namespace hpcdl::cuda {
namespace {

constexpr int kMostThreads = 256;

inline int packs_of(std::int64_t channels, int lanes) { return static_cast<int>((channels + lanes - 1) / lanes); }

/// Threads per block for `width` pixels of `packs` packs each.
inline unsigned threads_for(int width, int packs) {
  const std::int64_t n = std::int64_t{width} * packs;
  return n >= kMostThreads ? kMostThreads : static_cast<unsigned>((n + kWarp - 1) / kWarp * kWarp);
}

/// f(pixel of the row, channel, channels of the pack that exist) for this thread's part of a row.
template <int N, class F> __device__ void for_packs(int width, std::int64_t channels, F&& f) {
  const int packs = static_cast<int>((channels + N - 1) / N), all = width * packs;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int pixel = i / packs, c = (i - pixel * packs) * N;
    const std::int64_t left = channels - c;
    f(pixel, c, left < N ? static_cast<int>(left) : N);
  }
}

/// Elements [0, n) of a pack; kWhole: all of them, aligned to 16 bytes.
template <bool kWhole, class T> __device__ Lanes<kLanes<T>> load_pack(const T* p, int n) {
  if constexpr (kWhole) return widen(read_aligned<kLanes<T>>(p));
  else return load<kLanes<T>>(p, n);
}
template <bool kWhole, class T> __device__ void store_pack(T* p, const Lanes<kLanes<T>>& v, int n, bool add = false) {
  const auto sum = add ? v + load_pack<kWhole>(static_cast<const T*>(p), n) : v;
  if constexpr (kWhole) write_aligned(p, pack<T>(sum));
  else store(p, sum, n);
}

}  // namespace
}  // namespace hpcdl::cuda
