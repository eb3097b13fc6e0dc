#pragma once
// Pairs of rows of weights whose sums are used together.

namespace hpcdl::cuda {

inline constexpr int kMostMatrices = 3;

/// Which rows of which matrices.
struct PairPlace {
  int matrix[2], row[2];
};

}  // namespace hpcdl::cuda
