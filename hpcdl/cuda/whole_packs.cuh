#pragma once
// Which operands can be moved in whole accesses of 16 bytes.

#include <initializer_list>
#include <utility>

#include "hpcdl/cuda/lanes.cuh"

namespace hpcdl::cuda {

/// Whether a row-wise kernel may move only whole packs: rows of whole packs, all operands on 16-byte boundaries. Such
/// kernels are much smaller than those for any rows, and faster.
template <class T>
bool whole_packs(std::int64_t cols, std::initializer_list<std::pair<const void*, std::int64_t>> operands) {
  bool whole = cols % kLanes<T> == 0;
  for (const auto& [data, stride] : operands)
    whole = whole && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % kLanes<T> == 0;
  return whole;
}

}  // namespace hpcdl::cuda
