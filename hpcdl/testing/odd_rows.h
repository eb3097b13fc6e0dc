#pragma once
// Rows whose lengths are not multiples of 16 bytes, with elements around them that no kernel may write: for the tests
// of the teams of threads that handle them on a GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/rng.h"
#include "hpcdl/stream.h"

namespace hpcdl::testing {

/// Lengths in elements of bf16; a team ends at a multiple of 8.
inline constexpr std::int64_t kOddLengths[] = {
    3,    57,    119,   185,   249,   377,   505,   761,   1017,  1529,  2041,  3065,  4089,  5113,   6137,  8185,
    8193, 10233, 12281, 16377, 20473, 24569, 32761, 33001, 49145, 50257, 57337, 65529, 98297, 131065, 140001};
inline constexpr std::int64_t kRows = 5, kAround = 16;

/// Rows of x, with a stride of `apart` elements, after `first` elements.
template <class T> struct Placed {
  OwnedTensor host, there;
  std::int64_t rows, cols, apart, first;

  Placed(Stream& s, std::int64_t n, std::int64_t distance, std::int64_t begin, std::int64_t count = kRows,
         std::uint64_t seed = 5)
      : host(Spec{{begin + count * distance + kAround}, dtype_of<T>}),
        there(host.tensor.spec(), s.device()),
        rows(count),
        cols(n),
        apart(distance),
        first(begin) {
    for (std::int64_t i = 0; i < host.tensor.size(); ++i) host.tensor.ptr<T>()[i] = T(-7.0f);
    for (std::int64_t i = 0; i < rows * cols; ++i)
      at(i / cols, i % cols) = T(static_cast<float>(2 * Rng{seed, 1}.normal(static_cast<std::uint64_t>(i))));
    copy(s, there.tensor, host.tensor);
  }
  T& at(std::int64_t r, std::int64_t c) { return host.tensor.ptr<T>()[first + r * apart + c]; }
  Tensor matrix(Stream& s) {
    return Tensor(there.tensor.ptr<T>() + first, {{rows, cols}, dtype_of<T>}, Shape{apart, 1}, s.device());
  }
  std::vector<T> results(Stream& s) {
    copy(s, host.tensor, there.tensor);
    s.synchronize();
    std::vector<T> list;
    for (std::int64_t i = 0; i < rows * cols; ++i) list.push_back(at(i / cols, i % cols));
    return list;
  }
  void expect_untouched_around() {
    for (std::int64_t i = 0; i < host.tensor.size(); ++i) {
      const std::int64_t in_row = (i - first) % apart;
      if (i >= first && i < first + rows * apart && in_row < cols) continue;
      ASSERT_EQ(static_cast<float>(host.tensor.ptr<T>()[i]), -7.0f) << "element " << i - first << " was written";
    }
  }
};

/// The expected row, and the tolerance of each element.
struct ExpectedRow {
  std::vector<double> values, allowed;
};

/// Rows of `cols` at three positions: op(rows) must change them in place to reference(row), with the same bits at every
/// position, and must change nothing around them.
template <class T, class Op, class Reference>
void expect_odd_rows(Stream& s, std::int64_t cols, Op&& op, Reference&& reference) {
  SCOPED_TRACE(to_string(Spec{{kRows, cols}, dtype_of<T>}));
  std::vector<T> first;
  for (const auto& [apart, begin] : {std::pair<std::int64_t, std::int64_t>{cols, 16}, {cols, 19}, {cols + 5, 16}}) {
    Placed<T> x(s, cols, apart, begin);
    std::vector<ExpectedRow> want;
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::vector<double> row;
      for (std::int64_t c = 0; c < cols; ++c) row.push_back(static_cast<double>(static_cast<float>(x.at(r, c))));
      want.push_back(reference(std::span<const double>(row)));
    }
    op(x.matrix(s));
    const auto got = x.results(s);
    x.expect_untouched_around();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& [values, allowed] = want[i / static_cast<std::size_t>(cols)];
      const std::size_t c = i % static_cast<std::size_t>(cols);
      ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), values[c], allowed[c])
          << "element " << i << ", rows " << apart << " apart, after " << begin;
    }
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * sizeof(T)))
        << "different bits with rows " << apart << " apart, after " << begin;
  }
}

}  // namespace hpcdl::testing
