#pragma once
// One launch over many tensors of any sizes: their addresses travel in the kernel's parameters, so that nothing is allocated
// or copied first and a captured graph keeps them.

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

/// Up to kMax tensors with kPointers addresses each. Blocks of the grid go to tensors in order: those of tensor i begin at
/// first_block[i].
template <int kPointers, int kMax> struct TensorTable {
  static constexpr int max = kMax;
  int count = 0;
  std::int64_t size[kMax];
  void* pointer[kPointers][kMax];
  unsigned first_block[kMax + 1];
  unsigned char flags[kMax];

  /// The tensor that block b works on.
  __device__ int find(unsigned b) const {
    int lo = 0, hi = count;
    while (hi - lo > 1) {
      const int mid = (lo + hi) / 2;
      if (first_block[mid] <= b) lo = mid;
      else hi = mid;
    }
    return lo;
  }
};

}  // namespace hpcdl::cuda
