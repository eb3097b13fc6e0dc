#pragma once

#include "hpcdl/ops/fuse/operand.h"

namespace hpcdl::fuse {

/// How a kernel iterates over its operands: as one long row if all of them are contiguous. Always inlined, because its
/// name carries no instruction set (tests/symbols.test.cpp).
struct Plane {
  std::int64_t rows = 0, cols = 0;
};
template <class... Views> [[gnu::always_inline]] inline Plane plane_of(const View& first, const Views&... rest) {
  const auto flat = [](const View& v) { return !v || v.is_contiguous(); };
  if (flat(first) && (flat(rest) && ...)) return {1, first.size()};
  return {first.rows(), first.cols()};
}

}  // namespace hpcdl::fuse
