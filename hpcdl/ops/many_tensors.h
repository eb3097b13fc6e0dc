#pragma once
// Element-wise work over many tensors of any sizes, divided into blocks that do not depend on the number of threads.

#include "hpcdl/pool.h"

namespace hpcdl {

/// Elements of one block.
inline constexpr std::int64_t kTensorBlock = 8192;

inline std::int64_t tensor_blocks(std::int64_t size) { return (size + kTensorBlock - 1) / kTensorBlock; }

/// f(tensor, begin, end, block): `block` counts through all tensors, size(i) gives the number of elements of tensor i.
/// Each thread processes one contiguous share of the blocks.
template <class Size, class F> void for_tensor_blocks(Pool& pool, std::int64_t tensors, Size&& size, F&& f) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < tensors; ++i) total += tensor_blocks(size(i));
  parallel_for(pool, total, 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < tensors && first < end; ++i) {
      const auto n = size(i), blocks = tensor_blocks(n);
      for (auto b = begin > first ? begin - first : 0; b < blocks && first + b < end; ++b) {
        const auto to = (b + 1) * kTensorBlock;
        f(i, b * kTensorBlock, to < n ? to : n, first + b);
      }
      first += blocks;
    }
  });
}

}  // namespace hpcdl
