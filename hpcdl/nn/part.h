#pragma once
// The part of a parameter that one rank holds.

#include <vector>

#include "hpcdl/core/shape.h"

namespace hpcdl::nn {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Ranges of one dim of the whole tensor, one after the other: rows of a matrix, or its columns. A default Part is all
/// of a tensor.
struct Part {
  Shape whole;
  int dim = -1;
  std::vector<Range> ranges;

  explicit operator bool() const { return dim >= 0; }
  Shape shape() const {
    Shape s = whole;
    s[dim] = 0;
    for (const auto& r : ranges) s[dim] += r.count();
    return s;
  }
};

/// f(element here, element in the whole, count): runs of elements that are contiguous in both, in the order of memory
/// here.
template <class F> void for_each_run(const Part& p, F&& f) {
  std::int64_t outer = 1, inner = 1, at = 0;
  for (int i = 0; i < p.dim; ++i) outer *= p.whole[i];
  for (int i = p.dim + 1; i < p.whole.rank(); ++i) inner *= p.whole[i];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const auto& r : p.ranges) {
      const auto count = r.count() * inner;
      f(at, (o * p.whole[p.dim] + r.begin) * inner, count);
      at += count;
    }
  }
}

}  // namespace hpcdl::nn
