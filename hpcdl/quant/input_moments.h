#pragma once
// What the inputs of a matrix look like on some text: the second moments that error compensation needs.

#include <cstdint>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/stream.h"

namespace hpcdl::quant {

/// The mean of x x^T over the rows x, of k numbers, that were added. Takes 8 k^2 bytes.
class InputMoments {
 public:
  explicit InputMoments(std::int64_t k);

  std::int64_t k() const { return k_; }
  std::int64_t rows() const { return rows_; }
  /// Adds the rows of x (..., k), f32, bf16 or f16, on a CPU. The result does not depend on the number of threads.
  void add(Stream& s, const View& x);
  /// The mean of x_i x_j; 0 before the first row.
  double at(std::int64_t i, std::int64_t j) const;
  /// The sums of x_i x_j over the rows, (k, k).
  const double* sums() const { return sums_.data(); }
  /// Those of rotated rows.
  InputMoments rotated(void (*turn)(double* row, std::int64_t k)) const;
  /// The mean of x_i^2 for every i.
  std::vector<float> squares() const;

 private:
  std::int64_t k_, rows_ = 0;
  std::vector<double> sums_;  // (k, k)
};

}  // namespace hpcdl::quant
