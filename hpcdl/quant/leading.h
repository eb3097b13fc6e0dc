#pragma once
// Eigenvectors of symmetric matrices, and the directions in which a matrix is largest.

#include <cstdint>
#include <vector>

#include "hpcdl/pool.h"
#include "hpcdl/quant/wide.h"

namespace hpcdl::quant {

/// Eigenvalues in descending order, and the eigenvectors of the first ones as rows.
struct Eigen {
  std::vector<double> values;   // (n)
  std::vector<double> vectors;  // (wanted, n)
};

/// Of a symmetric matrix (n, n), which is overwritten; n < 2^31. Method: Householder's reduction to a tridiagonal matrix,
/// and implicit QL on that (Golub & Van Loan, "Matrix computations", chapter 8). Deterministic, also in the number of
/// threads.
Eigen symmetric_eigen(Pool& pool, std::vector<double>& matrix, std::int64_t n, std::int64_t wanted);

/// W (rows, columns) in f32, and the moments C (columns, columns) of its inputs x, times any factor; null: all inputs count
/// alike.
struct WeighedMatrix {
  const float* values = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;
  const double* moments = nullptr;
};

/// The `wanted` orthonormal vectors u, as rows of `rows` numbers, in whose span W x loses least: U U^T W is nearest to W
/// among all matrices of this rank, in the mean of |W x - W' x|^2. They are the leading eigenvectors of W C W^T: exact
/// for matrices with a side up to 512, and otherwise from subspace iteration (Halko et al., "Finding structure with
/// randomness", 2011), whose error is about 0.2 % larger where the singular values decay slowly. A vector is
/// zero if the rank of W is lower.
std::vector<double> leading_outputs(Pool& pool, const WeighedMatrix& w, std::int64_t wanted);

}  // namespace hpcdl::quant
