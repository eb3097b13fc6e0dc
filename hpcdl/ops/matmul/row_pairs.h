#pragma once
// Pairs of rows of weights whose sums are used together.

namespace hpcdl::cuda {

inline constexpr int kMostMatrices = 3;

/// The matrix and the row in it, for both rows of a pair.
struct PairPlace {
  int matrix[2], row[2];
};

}  // namespace hpcdl::cuda
