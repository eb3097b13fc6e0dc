#pragma once

#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {

/// How two tensors of one shape differ, as numbers; their types may differ.
struct TensorDifference {
  std::int64_t elements = 0;  // whose values differ; two NaN are equal
  double largest = 0;         // |a - b|; infinite where one is NaN and the other is not, or if infinities differ
  double magnitude = 0;       // the largest finite |a| or |b|
  bool bits = false;          // some bits differ; only for equal types

  /// The largest difference as a share of the largest magnitude; 0 if there is no difference.
  double relative() const { return largest == 0 ? 0 : magnitude == 0 ? largest : largest / magnitude; }
};

/// Reads both in chunks. Precondition: check_cover() accepts them, and they have the same shape.
TensorDifference difference(const StoredTensor& a, const StoredTensor& b);

}  // namespace hpcdl::io
