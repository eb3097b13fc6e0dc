#pragma once
// How many blocks decode at once: known to the kernels and to Attention::splits().

#include <algorithm>

namespace hpcdl {

/// Blocks of four warps that a multiprocessor of a large GPU holds while it decodes on tensor cores. Heads of `width`
/// elements of `bytes`; `queries`: heads that share keys, in one pass. The limits are shared memory, where each block has
/// several tiles of keys and values unless they are in registers, and registers, where it has the sums.
constexpr int decode_blocks(int width, int bytes, int queries) {
  const int whole = width <= 64 ? 64 : width <= 128 ? 128 : 256;
  if (whole == 128 && bytes == 2 && queries <= 8) return 3;
  return std::clamp(std::min(512 / (whole * bytes), 4096 / (whole * (queries <= 8 ? 8 : 16))), 1, 4);
}

}  // namespace hpcdl
